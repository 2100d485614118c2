"""Training of the aligners D and R, and their agreement with ratings meanwhile (Figure 7)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning import Trainer
from scipy import stats
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.files import JsonLog
from ctrlreward.models.aligner import RegressionAligner, TokenAligner
from ctrlreward.models.pairs import encode_pairs
from ctrlreward.models.sources import trained_folder
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.ratings.rated_files import read_rated
from ctrlreward.recipes.papers.ctc.aligners import (
    NO_LABEL,
    AlignerTrainer,
    RatedAgreement,
    RegressionAlignerTrainer,
    TokenAlignerTrainer,
    alignment_labels,
)
from ctrlreward.recipes.papers.ctc.pairs import AlignmentPair
from ctrlreward.scorers.alignment import Alignment

THINGS = ("soup", "boat", "lake", "mill", "bread", "guide", "pool", "view")
PAIRS = []
for i, thing in enumerate(THINGS):
    cold, start = f"the {thing} was cold .", len(f"the {thing} was ")
    PAIRS.append(AlignmentPair(i, cold, cold, ()))
    PAIRS.append(AlignmentPair(i, cold.replace("cold", "small"), cold, ((start, start + 5),)))
SUMMARIES = [
    {"system": "M", "document": f"The {a} was cold.", "summary": f"A cold {b}.", "consistency": r}
    for a, b, r in zip(THINGS, (*THINGS[:4], *"dust"), (5, 4, 5, 4.5, 1, 2, 1.5, 1), strict=True)
]
SAW = {"model": "M", "dialog_history": "what did you see ?"}
DIALOGS = [
    {**SAW, "response": f"i saw the {thing} {'twice ' * i}", "engaging": i % 3,
     "uses_knowledge": i, "fact": f"your persona: i like the {thing} ."}
    for i, thing in enumerate(THINGS)
]  # fmt: skip
RATINGS: Any = (("news", "consistency", "consistency"), ("chat", "engagingness", "engaging"),
                ("chat", "groundedness", "uses_knowledge"))  # fmt: skip


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("news.json").write_text(json.dumps(SUMMARIES))
    Path("chat.json").write_text(json.dumps(DIALOGS))


def loader() -> Any:
    return DataLoader(PAIRS, 4, collate_fn=list)  # type: ignore[arg-type]


def fitted(module: AlignerTrainer, *callbacks: Any) -> tuple[Trainer, list[dict[str, float]]]:
    """Train for three epochs; return the trainer and the logged validations."""
    torch.manual_seed(0)
    trainer = quiet_trainer(
        logger=HistoryLogger("run"),
        callbacks=[*callbacks],
        num_sanity_val_steps=1,
        max_epochs=3,
        default_root_dir="run",
    )
    trainer.fit(module, loader(), loader())
    return trainer, [r for r in JsonLog(Path("run") / "metrics.jsonl").read() if "val_loss" in r]


def wrong_in(pair: AlignmentPair) -> set[int]:
    return {i for first, last in pair.hallucinated for i in range(first, last)}


def written() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path("model").iterdir()}


def test_the_folder_of_d_has_the_model_of_the_best_validation(encoder: str) -> None:
    module = TokenAlignerTrainer(encoder, "model", learning_rate=1e-2)
    trainer, rows = fitted(module)
    assert min(row["val_loss"] for row in rows) < rows[0]["val_loss"]
    for name in ("val_f1_hallucinated", "val_auc"):
        assert all(0 <= row[name] <= 1 for row in rows)
    best = max(rows, key=lambda row: row["val_f1_hallucinated"])
    aligner, losses = TokenAligner("model"), []
    for first in range(0, len(PAIRS), 4):
        batch, right = PAIRS[first : first + 4], []
        aligned = aligner.align([(pair.a, pair.b) for pair in batch])
        for pair, alignment in zip(batch, aligned, strict=True):
            for (s, e), value in zip(alignment.spans, alignment.values, strict=True):
                right.append(1 - value if wrong_in(pair) & set(range(s, e)) else value)
        losses.append(-np.mean(np.log(right)))
    assert np.mean(losses) == pytest.approx(best["val_loss"], rel=1e-4)
    before = written()
    (again,) = trainer.validate(module, loader(), verbose=False)
    assert again["val_loss"] == pytest.approx(best["val_loss"], rel=1e-4)
    assert written() == before


@pytest.mark.parametrize("target", ["mean", "sum"])
def test_r_learns_the_mean_or_the_sum(encoder: str, target: Any) -> None:
    _, rows = fitted(RegressionAlignerTrainer(encoder, "model", 1e-2, target=target))
    aligned = RegressionAligner("model").align([(pair.a, pair.b) for pair in PAIRS])
    labels = []
    for pair in PAIRS:
        words = list(re.finditer(r"\S+", pair.a))
        right = [m.group() for m in words if not {*range(*m.span())} & wrong_in(pair)]
        content = [word for word in right if word not in ENGLISH_STOP_WORDS]
        labels.append(len(right) / len(words) if target == "mean" else len(content))
    errors = [(a.values[0] - label) ** 2 for a, label in zip(aligned, labels, strict=True)]
    assert np.mean(errors) == pytest.approx(min(row["val_mse"] for row in rows), rel=1e-3)


@pytest.mark.parametrize("kind", [TokenAlignerTrainer, RegressionAlignerTrainer])
def test_the_agreement_of_the_best_validation_is_that_of_the_trained_model(
    kind: type[AlignerTrainer], encoder: str
) -> None:
    agreement = RatedAgreement(["news.json", "chat.json"])
    _, rows = fitted(kind(encoder, "model", learning_rate=1e-2), agreement)
    assert len(rows) == 3  # not in the sanity check
    score, sign = ("val_f1_hallucinated", -1) if kind is TokenAlignerTrainer else ("val_loss", 1)
    best = min(rows, key=lambda row: sign * row[score])
    method: Any = "discriminative" if kind is TokenAlignerTrainer else "regression"
    for file, aspect, rating in RATINGS:
        rated = read_rated(Path(f"{file}.json"))
        scores = Alignment("model", aspect, method).score(rated.samples)[aspect]
        expected = stats.pearsonr(scores, rated.ratings[rating]).statistic
        assert best[f"agreement/{file}_{aspect}"] == pytest.approx(expected, abs=1e-6)


def test_a_training_that_diverged_is_not_written(encoder: str) -> None:
    with pytest.raises(ValueError, match="diverged"):
        fitted(TokenAlignerTrainer(encoder, "model", learning_rate=1e30))
    assert not Path("model").exists()
    assert TokenAlignerTrainer(encoder, "aligner-consistency").folder == trained_folder(
        "aligner-consistency"
    )


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
    """Words without a label count in no loss."""
    pair = AlignmentPair(0, "the soup was cold .", "the soup was small .", hallucinated, unknown)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    (encoded,) = encode_pairs(tokenizer, [(pair.a, pair.b)], 64)
    assert alignment_labels(encoded, pair) == labels
    torch.manual_seed(0)
    trainer = RegressionAlignerTrainer(encoder)
    trainer.configure_model()
    trainer.eval()  # no dropout
    predicted = trainer.model(**tokenizer(pair.a, pair.b, return_tensors="pt")).logits.item()
    counted = [label for label in labels if label != NO_LABEL]
    loss = trainer.batch_loss([pair]).item()
    assert loss == pytest.approx((predicted - np.mean(counted)) ** 2, rel=1e-4)
    other = TokenAlignerTrainer(encoder)
    other.configure_model()
    assert other.eval().batch_loss([pair]).isfinite()


@pytest.mark.parametrize("decoder", [False, True])
def test_upper_layers_are_dropped_and_lower_ones_frozen(
    encoder: str, tiny_causal: Callable[..., str], decoder: bool
) -> None:
    """A decoder reads the context first, without being told."""
    base = tiny_causal("llama") if decoder else encoder
    layers, frozen = (1, 0) if decoder else (2, 1)
    fitted(TokenAlignerTrainer(base, "model", 1e-2, layers=layers, frozen_layers=frozen))
    aligner = TokenAligner("model")
    assert aligner.model.config.aligner_b_first == decoder
    before = AutoModel.from_pretrained(base).state_dict()
    after = aligner.model.base_model.state_dict()
    changed = {key for key in after if not torch.equal(before[key], after[key])}
    assert changed
    if decoder:
        assert not any("layers.1." in key for key in after)
    else:
        assert all("layer.1." in key for key in changed)
