from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tiny_aligners import SENTENCES as TEXTS
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertModel
from word_models import word_tokenizer

from ctrlreward.files import JsonLog
from ctrlreward.jobs.training_job import TrainCLI, build
from ctrlreward.models.aligner import RegressionAligner, TokenAligner
from ctrlreward.models.pairs import encode_pairs
from ctrlreward.models.sources import TRAINED_NAMES
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.recipes.papers.ctc.aligners import (
    NO_LABEL,
    RegressionAlignerTrainer,
    TokenAlignerTrainer,
    alignment_labels,
)
from ctrlreward.recipes.papers.ctc.pairs import AlignmentPair, read_pair_file

CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "alignment"
ALPHABET = "abcdefghijklmnopqrstuvwxyz .,!"

pytestmark = pytest.mark.usefixtures("one_thread")

Configured = Callable[..., TrainCLI]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny random BERT without a head, whose vocabulary is the words of the texts."""
    folder = tmp_path_factory.mktemp("encoder")
    words = word_tokenizer(sorted(set(" ".join(TEXTS).split())))
    words.model_max_length = 64
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def configured(tmp_path: Path, encoder: str, tiny_llama: Callable[[str], str]) -> Configured:
    """Builds the MiniLM configuration with tiny models and eight texts."""
    texts = tmp_path / "texts"
    texts.write_text("\n".join(TEXTS))
    changes = {
        "model.init_args.encoder": encoder,
        "data.init_args.pairs.texts": f"[{texts}]",
        "data.init_args.pairs.exclude": "[]",
        "data.init_args.pairs.file": tmp_path / "pairs.jsonl",
        "data.init_args.pairs.count": len(TEXTS),
        "data.init_args.pairs.infiller": tiny_llama(ALPHABET),
        "data.init_args.validation_share": 0.25,
        "data.init_args.batch_size": 4,
        "model.init_args.learning_rate": 3e-3,
        "trainer.enable_progress_bar": "false",
    }

    def make(name: str, trainer: str, epochs: int, **more: object) -> TrainCLI:
        folder = tmp_path / name
        arguments = [f"--config={CONFIGS / 'yelp_minilm.yaml'}"]
        arguments.append(f"--model.class_path=ctrlreward.recipes.papers.ctc.aligners.{trainer}")
        where = {
            "model.init_args.folder": folder / "model",
            "trainer.default_root_dir": folder,
            "trainer.logger.init_args.folder": folder,
            "trainer.max_epochs": epochs,
        }
        arguments += [f"--{key}={value}" for key, value in {**changes, **where, **more}.items()]
        return build(arguments)

    return make


@pytest.fixture
def fitted(configured: Configured) -> Configured:
    """Builds the same and trains it."""

    def fit(name: str, trainer: str, epochs: int, **more: object) -> TrainCLI:
        cli = configured(name, trainer, epochs, **more)
        cli.trainer.fit(cli.model, cli.datamodule)
        return cli

    return fit


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_d_learns_the_labels_of_its_pairs(fitted: Configured, tmp_path: Path) -> None:
    cli = fitted("d", "TokenAlignerTrainer", 6)
    rows = JsonLog(tmp_path / "d" / "metrics.jsonl").read()
    validations = [row for row in rows if "val_loss" in row]
    losses = [row["val_loss"] for row in validations]
    assert len(losses) == 12  # twice an epoch
    assert min(losses) < losses[0]
    for name in ("val_f1_hallucinated", "val_auc"):
        assert all(0 <= row[name] <= 1 for row in validations)
    pairs = read_pair_file(str(tmp_path / "pairs.jsonl"))
    splits = cli.datamodule.splits
    validation = splits["validation"]
    assert sorted(splits["train"] + validation) == sorted(pairs)
    assert not {p.source for p in splits["train"]} & {p.source for p in validation}

    # The folder holds the model of the first validation with the best F1, which has its loss again.
    _, best = max((row["val_f1_hallucinated"], -i) for i, row in enumerate(validations))
    aligner, loss = TokenAligner(str(tmp_path / "d" / "model")), 0.0
    for start in range(0, len(validation), 4):
        batch, right = validation[start : start + 4], []
        aligned = aligner.align([(pair.a, pair.b) for pair in batch])
        for pair, alignment in zip(batch, aligned, strict=True):
            wrong = {i for s, e in pair.hallucinated for i in range(s, e)}
            for (s, e), value in zip(alignment.spans, alignment.values, strict=True):
                right.append(1 - value if wrong & set(range(s, e)) else value)
        loss -= len(batch) / len(validation) * np.mean(np.log(right))
    assert loss == pytest.approx(losses[-best], rel=1e-4)

    # `validate` uses the trained model and writes nothing.
    before = written(tmp_path / "d" / "model")
    (again,) = cli.trainer.validate(cli.model, cli.datamodule, verbose=False)
    assert again["val_loss"] == pytest.approx(loss, rel=1e-4)
    assert written(tmp_path / "d" / "model") == before


@pytest.mark.parametrize("target", ["mean", "sum"])
def test_r_learns_the_mean_or_the_sum(fitted: Configured, tmp_path: Path, target: str) -> None:
    cli = fitted("r", "RegressionAlignerTrainer", 3, **{"model.init_args.target": target})
    rows = JsonLog(tmp_path / "r" / "metrics.jsonl").read()
    losses = [row["val_mse"] for row in rows if "val_mse" in row]
    pairs = cli.datamodule.splits["validation"]
    aligned = RegressionAligner(str(tmp_path / "r" / "model")).align([(p.a, p.b) for p in pairs])
    labels = []
    for pair in pairs:
        wrong = {i for start, end in pair.hallucinated for i in range(start, end)}
        words = list(re.finditer(r"\S+", pair.a))
        right = [m.group() for m in words if not {*range(*m.span())} & wrong]
        content = [word for word in right if word not in ENGLISH_STOP_WORDS]
        labels.append(len(right) / len(words) if target == "mean" else len(content))
    errors = [(a.values[0] - label) ** 2 for a, label in zip(aligned, labels, strict=True)]
    assert np.mean(errors) == pytest.approx(min(losses), rel=1e-3)


def test_a_training_that_diverged_is_not_written(
    configured: Configured, tmp_path: Path, encoder: str
) -> None:
    cli = configured("d", "TokenAlignerTrainer", 1, **{"model.init_args.learning_rate": 1e30})
    with pytest.raises(ValueError, match="diverged"):
        cli.trainer.fit(cli.model, cli.datamodule)
    assert not (tmp_path / "d" / "model").exists()


@pytest.mark.parametrize(
    ("hallucinated", "unknown", "labels"),
    [
        ([(13, 17)], [], [1, 1, 1, 0, 1]),
        ([(5, 14)], [], [1, 0, 0, 0, 1]),  # a word that touches a span is hallucinated
        ([], [], [1, 1, 1, 1, 1]),
        ([(13, 17)], [(0, 8)], [NO_LABEL, NO_LABEL, 1, 0, 1]),
        ([(13, 17)], [(0, 17)], [NO_LABEL, NO_LABEL, NO_LABEL, 0, 1]),
    ],
)
def test_labels_of_words(encoder: str, hallucinated: Any, unknown: Any, labels: list[int]) -> None:
    pair = AlignmentPair(0, "the soup was cold .", "the soup was small .", hallucinated, unknown)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    (encoded,) = encode_pairs(tokenizer, [(pair.a, pair.b)], 64)
    assert alignment_labels(encoded, pair) == labels


def test_words_without_a_label_count_nowhere(encoder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    pair = AlignmentPair(0, "the soup was cold .", "the soup was small .", ((13, 17),), ((0, 8),))
    trainers = [TokenAlignerTrainer(encoder), RegressionAlignerTrainer(encoder)]
    for trainer in trainers:
        torch.manual_seed(0)
        trainer.configure_model()
        trainer.eval()  # no dropout
    d, r = (trainer.batch_loss([pair]) for trainer in trainers)
    (logits,) = trainers[0].model(**tokenizer(pair.a, pair.b, return_tensors="pt")).logits
    aligned = logits.softmax(-1)[1:6, 1].tolist()  # behind [CLS]
    assert d.item() == pytest.approx(-np.log([aligned[2], 1 - aligned[3], aligned[4]]).mean(), 1e-4)
    predicted = trainers[1].model(**tokenizer(pair.a, pair.b, return_tensors="pt")).logits.item()
    assert r.item() == pytest.approx((predicted - 2 / 3) ** 2, rel=1e-4)


@pytest.mark.parametrize("decoder", [False, True])
def test_upper_layers_are_dropped_and_lower_ones_frozen(
    fitted: Configured, tmp_path: Path, encoder: str, tiny_causal: Callable[..., str], decoder: bool
) -> None:
    """A decoder reads the context first, without being told."""
    base = tiny_causal("llama") if decoder else encoder
    total = AutoConfig.from_pretrained(base).num_hidden_layers
    assert total == 2
    options = {"encoder": base, "layers": 1, "frozen_layers": 0}
    if not decoder:
        options |= {"layers": 2, "frozen_layers": 1}
    given = {f"model.init_args.{name}": value for name, value in options.items()}
    fitted("d", "TokenAlignerTrainer", 2, **given)
    aligner = TokenAligner(str(tmp_path / "d" / "model"))
    assert aligner.model.config.aligner_b_first == decoder
    before = AutoModel.from_pretrained(base).state_dict()
    after = aligner.model.base_model.state_dict()
    assert after.keys() <= before.keys()
    changed = {key for key in after if not torch.equal(before[key], after[key])}
    if decoder:
        assert not any("layers.1." in key for key in after)
        assert any("layers.0." in key for key in changed)
    else:
        assert changed
        assert all("layer.1." in key for key in changed)


@pytest.mark.parametrize("name", sorted(TRAINED_NAMES))
def test_a_built_in_aligner_trains_as_configured(
    name: str,
    tmp_path: Path,
    encoder: str,
    tiny_llama: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its configuration, with tiny models and texts of ours in place of WikiText and novels."""
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    texts = tmp_path / "texts"
    sentences = [text[:-2].capitalize() for text in TEXTS]
    paragraphs = [" ".join(f"{s} {i} times, said Arlen." for s in sentences) for i in range(6)]
    texts.write_text("\n\n".join(paragraphs))
    config = CONFIGS.parents[1] / TRAINED_NAMES[name]
    settings = yaml.safe_load(config.read_text())["data"]["init_args"]
    small: dict[str, object] = {
        "model.init_args.encoder": encoder,
        "model.init_args.layers": 2,
        "model.init_args.frozen_layers": 1,
        "data.init_args.pairs.file": tmp_path / "pairs.jsonl",
        "data.init_args.pairs.texts": f"[{texts}]",
        "data.init_args.pairs.exclude": "[]",
        "data.init_args.pairs.infiller": tiny_llama(ALPHABET),
        "data.init_args.pairs.count": 4,
        "data.init_args.validation_share": 0.25,
        "trainer.max_epochs": 1,
        "trainer.precision": "32-true",
        "trainer.default_root_dir": tmp_path,
        "trainer.logger.init_args.folder": tmp_path,
        "trainer.enable_progress_bar": "false",
    }
    if settings["pairs"].get("passage_words"):
        small["data.init_args.pairs.passage_words"] = "[20, 60]"
    if "passages" in settings:
        small["data.init_args.passages.texts"] = f"[{texts}]"
        small["data.init_args.passages.words"] = "[20, 60]"
        small["data.init_args.passages.count"] = 6
    cli = build([f"--config={config}", *(f"--{key}={value}" for key, value in small.items())])
    cli.trainer.fit(cli.model, cli.datamodule)
    sources = {pair.source for split in cli.datamodule.splits.values() for pair in split}
    # Without extra pairs, a text that the infiller has no words for gives none.
    assert 0 <= len(sources) - 6 * ("passages" in settings) <= 4
    aligner = TokenAligner(name)
    assert [len(a.spans) for a in aligner.align([(TEXTS[0], TEXTS[1])])] == [9]
