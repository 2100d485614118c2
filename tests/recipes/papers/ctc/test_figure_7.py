"""Agreement with human ratings while an aligner is trained (Figure 7 of CTC)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lightning_choice import quiet_trainer
from pytorch_lightning import LightningModule, Trainer
from scipy import stats
from tiny_models import save_bert
from torch.utils.data import DataLoader
from transformers import BertModel

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.files import JsonLog
from ctrlreward.recipes.papers.ctc.aligners import (
    AlignerTrainer,
    RatedAgreement,
    RegressionAlignerTrainer,
    TokenAlignerTrainer,
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
# Key of a published file → column of samples.
NAMES = {"summary": "texts", "response": "texts", "document": "sources", "fact": "contexts",
         "dialog_history": "histories"}  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("bert"), BertModel, initializer_range=0.2)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("news.json").write_text(json.dumps(SUMMARIES))
    Path("chat.json").write_text(json.dumps(DIALOGS))


def loader() -> Any:
    return DataLoader(PAIRS, 4, collate_fn=list)  # type: ignore[arg-type]


def fitted(model: LightningModule, *callbacks: RatedAgreement, **options: Any) -> Trainer:
    trainer = quiet_trainer(
        logger=HistoryLogger("run"),
        callbacks=[*callbacks],
        num_sanity_val_steps=1,
        **{"max_epochs": 3, **options},
    )
    trainer.fit(model, loader(), loader())
    return trainer


@pytest.mark.parametrize("kind", [TokenAlignerTrainer, RegressionAlignerTrainer])
def test_the_value_of_the_best_validation_is_that_of_the_trained_model(
    kind: type[AlignerTrainer], encoder: str
) -> None:
    module = kind(encoder, "model", learning_rate=1e-2)
    trainer = fitted(module, RatedAgreement(["news.json", "chat.json"], "spearman"))
    # The folder has the model of the first best validation.
    score, sign = ("val_f1_hallucinated", -1) if kind is TokenAlignerTrainer else ("val_loss", 1)
    method = "discriminative" if kind is TokenAlignerTrainer else "regression"
    aspects = ("consistency", "engagingness", "groundedness")
    rows = [row for row in JsonLog(Path("run") / "metrics.jsonl").read() if "val_loss" in row]
    best = min(range(3), key=lambda i: sign * rows[i][score])
    news, chat = ("news", SUMMARIES), ("chat", DIALOGS)
    for aspect, rating, (file, rated) in zip(
        aspects, ("consistency", "engaging", "uses_knowledge"), (news, chat, chat), strict=True
    ):
        values = [row[f"agreement/{file}_{aspect}"] for row in rows]
        assert len(values) == 3  # not in the sanity check
        columns = {
            NAMES[key]: [row[key] for row in rated] for key in NAMES.keys() & rated[0].keys()
        }
        scores = Alignment("model", aspect, method).score(columns)[aspect]
        expected = stats.spearmanr(scores, [row[rating] for row in rated]).statistic
        assert values[best] == pytest.approx(expected, abs=1e-6)
    last = trainer.callback_metrics["agreement/news_consistency"].item()
    assert last == pytest.approx(rows[-1]["agreement/news_consistency"])
