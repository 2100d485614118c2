from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from pytorch_lightning import seed_everything
from tiny_models import save_bert
from transformers import BertModel

from ctrlreward import Accuracy
from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.scoring_models.corrupted_texts import (
    LABELS,
    CorruptedTexts,
    Kind,
)

CONFIG = (
    Path(__file__).resolve().parents[3] / "configs" / "scoring_models" / "soundness_minilm.yaml"
)
ACTS = ("rose", "ate", "sang", "left", "slept")


def paragraph(day: int, sentences: int = 5) -> str:
    """A text whose sentences name their day and their place in it."""
    return " ".join(f"Day {day} number {i} she {ACTS[i % 5]}." for i in range(sentences))


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [paragraph(day, 3 + day % 8) for day in range(80)]
    Path("train.txt").write_text("= A title =\n\n" + "\n".join(lines) + "\nOne sentence.\n")
    Path("test.txt").write_text("\n".join(paragraph(day) for day in range(76, 96)) + "\n")


def data(**options: object) -> CorruptedTexts:
    found = CorruptedTexts(["train.txt"], ["test.txt"], **options)  # type: ignore[arg-type]
    found.setup("fit")
    return found


def sentences_of(text: str) -> list[str]:
    return [f"{part}." for part in text.rstrip(".").split(". ")]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_kind_changes_a_passage_in_its_way(kind: Kind) -> None:
    found = data(kinds=[kind], sentences=(3, 5))
    assert found.labels == LABELS == ("corrupted", "sound")
    rows = [row for split in ("train", "validation", "test") for row in found.sentences[split]]
    text = Path("train.txt").read_text() + Path("test.txt").read_text()
    for corrupted, sound in zip(rows[::2], rows[1::2], strict=True):
        assert (corrupted.label, sound.label) == (0, 1)
        assert sound.text in text
        before, after = sentences_of(sound.text), sentences_of(corrupted.text)
        assert 3 <= len(before) <= 5
        changed = [i for i, pair in enumerate(zip(before, after, strict=False)) if len({*pair}) > 1]
        if kind == "shuffled":
            assert sorted(after) == sorted(before) != after != before
        elif kind == "dropped":
            assert [s for s in before if s in after] == after
            assert len(after) == len(before) - 1
            assert (after[0], after[-1]) == (before[0], before[-1])
        else:
            assert len(after) == len(before)
            (place,) = changed
            assert (after[place] in before) == (kind == "repeated")
            assert after[place] in text


def test_the_splits_share_no_passage_and_a_seed_gives_one_data_set() -> None:
    found, again, other = data(), data(), data(seed=1)
    sound = {
        split: {row.text for row in rows if row.label == 1}
        for split, rows in found.sentences.items()
    }
    assert all(len(texts) > 1 for texts in sound.values())
    assert not sound["train"] & sound["validation"]
    assert not sound["train"] & sound["test"]
    assert "One sentence." not in sound["train"]
    assert found.sentences == again.sentences != other.sentences
    for split in ("train", "validation"):  # a replaced sentence comes from its own split
        days = {text.split()[1] for text in sound[split]}
        for row in found.sentences[split]:
            assert {part.split()[1] for part in sentences_of(row.text)} <= days


@pytest.mark.soak
def test_the_config_trains_a_judge_that_needs_no_labels(tmp_path: Path) -> None:
    """Lost sentences are what a tiny model with random weights learns to notice in seconds."""
    (tmp_path / "bert").mkdir()
    encoder = save_bert(tmp_path / "bert", BertModel, initializer_range=0.1)
    given = {
        "model.init_args.folder": "judge",
        "model.init_args.model": encoder,
        "model.init_args.learning_rate": "0.005",
        "data.init_args.train": "[train.txt]",
        "data.init_args.test": "[test.txt]",
        "data.init_args.kinds": "[dropped]",
        "data.init_args.sentences": "[3, 3]",
        "data.init_args.batch_size": "8",
        "trainer.max_epochs": "8",
        "trainer.default_root_dir": str(tmp_path / "run"),
        "trainer.enable_progress_bar": "false",
    }
    seed_everything(0)
    cli = build(["--config", str(CONFIG), *(f"--{name}={value}" for name, value in given.items())])
    cli.trainer.fit(cli.model, cli.datamodule)
    assert json.loads(Path("judge/evaluation.json").read_text())["test_accuracy"] > 0.8

    judge = Accuracy("judge", target="sound")
    texts = [row.text for row in cli.datamodule.sentences["test"]]
    scores = judge.score(texts)["label_probability"]
    by_label = Accuracy("judge").score(texts, labels=["sound"] * len(texts))["label_probability"]
    assert scores.tolist() == by_label.tolist()
    assert scores[1::2].mean() > scores[::2].mean() + 0.3  # sound above corrupted
