from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from scoring_recipes import overrides, written
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.scoring_models.language_model import (
    END,
    Corpus,
    LanguageModelTrainer,
    count_words,
)
from ctrlreward.scorers import Perplexity

CONFIG = (
    Path(__file__).resolve().parents[3] / "configs" / "style_transfer" / "language_model_yelp.yaml"
)
LINES = [f"the {thing} was {word} ." for thing in ("food", "soup", "staff", "room")
         for word in ("good", "bad", "cold", "kind", "small")]  # fmt: skip
RARE = ["we saw otters .", "we saw geese ."]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    """Files of training, test and further held-out sentences."""
    return {
        "train": [
            written(tmp_path / "one", [*LINES, "", LINES[0].upper(), "The  room was odd ."]),
            written(tmp_path / "two", [*RARE, LINES[1]]),
        ],
        "test": [written(tmp_path / "test", ["the room was odd .", ""])],
        "exclude": [written(tmp_path / "left_out", [f"{LINES[2]}\t{LINES[3]}"])],
    }


def test_held_out_sentences_are_not_trained_on(files: dict[str, list[str]]) -> None:
    data = Corpus(**files, validation_share=0.25)
    data.setup("fit")
    kept = data.sentences["train"] + data.sentences["validation"]
    assert sorted(kept) == sorted(set(LINES) - {LINES[2], LINES[3]} | set(RARE))  # each once
    assert len(data.sentences["validation"]) == round(0.25 * len(kept))
    assert data.sentences["test"] == ["the room was odd ."]


def words_of(text: str) -> list[str]:
    return list(count_words([text]).elements())


@pytest.mark.parametrize(
    ("plain", "tokenized"),
    [
        ("It didn't taste watered down.", "it did n't taste watered down ."),
        ("We're SURE: they'd can’t (won't) sell 1/2...", "we 're sure : they 'd ca n't ( wo n't ) "
         "sell 1/2 ..."),
        ("A so-so drive-thru -- $_num_ , ok?", "a so-so drive-thru -- $ _num_ , ok ?"),
    ],
)  # fmt: skip
def test_plain_text_is_split_as_tokenized_text(plain: str, tokenized: str) -> None:
    assert sorted(words_of(plain)) == sorted(tokenized.split()) == sorted(words_of(tokenized))


# The training


SMALL: dict[str, object] = {
    "model.init_args.min_count": 2,
    "model.init_args.width": 16,
    "model.init_args.heads": 2,
    "data.init_args.batch_size": 4,
    "trainer.precision": "32-true",
    "trainer.max_epochs": 3,
}


def log_probs(folder: Path, texts: list[str]) -> list[np.ndarray]:
    """Log-probability of each word and of the end, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = []
    for text in texts:
        ids = tokenizer(f"{END}{text}{END}", return_tensors="pt").input_ids
        values = model(ids).logits[0, :-1].log_softmax(-1)
        rows.append(values.gather(1, ids[0, 1:, None])[:, 0].detach().double().numpy())
    return rows


def test_training_writes_the_best_epochs_model(
    files: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    cli = build(["--config", str(CONFIG), *overrides(tmp_path, **files, **SMALL)])
    cli.trainer.fit(cli.model, cli.datamodule)
    folder, data = tmp_path / "model", cli.datamodule.sentences

    rare = {word for word, count in count_words(data["train"]).items() if count < 2}
    assert "otters" in rare | set(count_words(data["validation"]))
    best = torch.load(cli.trainer.checkpoint_callback.best_model_path, weights_only=True)
    expected = {name.removeprefix("model."): w for name, w in best["state_dict"].items()}
    expected["lm_head.bias"][1] -= math.log(len(rare))  # <unk> is one of them
    for name, weight in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
        assert torch.equal(weight, expected[name])

    report = json.loads((folder / "evaluation.json").read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert report["known_words"] == len(tokenizer) - 2
    assert report["rare_words"] == len(rare)
    for split in ("validation", "test"):
        rows = log_probs(folder, data[split])
        words = [word for text in data[split] for word in text.split()]
        assert report[split] == {
            "texts": len(data[split]),
            "perplexity": pytest.approx(np.exp(-np.concatenate([r[:-1] for r in rows]).mean())),
            "perplexity_with_ends": pytest.approx(np.exp(-np.concatenate(rows).mean())),
            "unknown_words": np.mean([word not in tokenizer.get_vocab() for word in words]),
        }
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    best_logged = min(row["val_perplexity"] for row in logged if "val_perplexity" in row)
    assert cli.trainer.checkpoint_callback.best_model_score.item() == pytest.approx(best_logged)


def trained(
    files: dict[str, list[str]],
    folder: Path,
    options: dict[str, Any] | None = None,
    checkpoint: Path | None = None,
    **trainer: Any,
) -> LanguageModelTrainer:
    small = {"min_count": 2, "width": 16, "heads": 2, "learning_rate": 0.01}
    torch.manual_seed(0)
    model = LanguageModelTrainer(str(folder), **small | (options or {}))
    settings = {"max_epochs": 1} | trainer
    quiet_trainer(default_root_dir=str(folder.parent), **settings).fit(
        model, Corpus(**files, batch_size=4), ckpt_path=checkpoint
    )
    return model


def test_a_resumed_run_repeats_an_uninterrupted_one(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    keep = ModelCheckpoint(tmp_path / "epochs", "{epoch}", save_top_k=-1, monitor="val_loss")
    whole = trained(
        files, tmp_path / "a", max_epochs=3, enable_checkpointing=True, callbacks=[keep]
    )
    torch.rand(7)  # the state of the generator differs
    resumed = trained(
        files, tmp_path / "b", checkpoint=tmp_path / "epochs" / "epoch=0.ckpt", max_epochs=3
    )
    last = torch.load(tmp_path / "epochs" / "epoch=2.ckpt", weights_only=True)["state_dict"]
    for name, weight in resumed.model.state_dict().items():
        shift = math.log(whole.rare_words) if name == "lm_head.bias" else 0
        expected = last[f"model.{name}"].clone()
        if shift:
            expected[1] -= shift
        torch.testing.assert_close(weight, expected)


def test_the_validation_loss_is_the_mean_over_words_and_ends(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    """Sentences of different lengths in one batch: padding counts nowhere."""
    model = trained(files, tmp_path / "model", {"share_unknown": False}).eval()
    texts = ["the soup", "the staff was kind to otters .", "."]
    loss, count = model._loss(texts)
    expected = np.concatenate(log_probs(tmp_path / "model", texts))
    assert (loss.item(), count) == (pytest.approx(-expected.mean(), rel=1e-5), len(expected))


def test_nonsense_is_less_likely_than_any_sentence(
    files: dict[str, list[str]], tmp_path: Path
) -> None:
    """With <unk> as one word it need not be."""
    files["train"] = [written(tmp_path / "more", [*LINES, *(f"a b{i} c{i} ." for i in range(99))])]
    values = {}
    for shared in (True, False):
        folder = tmp_path / str(shared)
        trained(files, folder, {"share_unknown": shared}, max_epochs=4)
        texts = [*LINES, "xq zzu kwv ffp"]
        values[shared] = Perplexity(str(folder)).score(texts)["perplexity"]
    assert values[True][-1] > 3 * values[True][:-1].max()
    assert values[False][-1] < values[True][-1] / 20
    np.testing.assert_allclose(values[False][:-1], values[True][:-1], rtol=0.5)
