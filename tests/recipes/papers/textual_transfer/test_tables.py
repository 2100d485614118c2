"""The report of a run whose checkpoints differ in their texts, and tables of several runs."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import quiet_trainer
from pytorch_lightning.demos.boring_classes import BoringDataModule, BoringModel

from ctrlreward import Samples
from ctrlreward.callbacks import RewardCheckpoint
from ctrlreward.files import JsonLog, read_jsonl
from ctrlreward.recipes.papers.textual_transfer import tables
from ctrlreward.recipes.papers.textual_transfer.tables import (
    PUBLISHED,
    TransferReport,
    common_accuracy,
    read_references,
    read_run,
    reference_bleu,
)
from ctrlreward.recipes.style_transfer import ScoringModels

PAIRS = [("the soup was so cold .", "The soup was so lovely."), ("the tea .", "the tea !")]


@pytest.fixture
def references(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "pairs").write_text("\n".join(map("\t".join, PAIRS)))
    return dict.fromkeys(("sour", "sweet"), str(tmp_path / "pairs"))


class Restyler(BoringModel):
    """Ends each transfer with one of three words, by a weight that is the number of the epoch."""

    gm = (1.0, 3.0, 2.0)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("epoch", torch.tensor(0))

    def complete_samples(self, samples: Samples) -> list[str]:
        assert not self.training
        word = ("cold", "lovely", "so")[int(self.epoch)]
        return [f"{source[:-2]} {word} ." for source in samples.sources or ()]

    def on_validation_epoch_end(self) -> None:
        self.epoch.fill_(self.current_epoch)
        self.log("score/corpus/gm", self.gm[self.current_epoch])


def test_the_best_checkpoint_transfers_and_is_scored(
    references: dict[str, str], scoring_models: ScoringModels, tmp_path: Path
) -> None:
    run = tmp_path / "m2"
    trainer = quiet_trainer(
        enable_checkpointing=True,
        max_epochs=3,
        limit_train_batches=2,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        default_root_dir=str(run),
        callbacks=[
            RewardCheckpoint("score/corpus/gm", "max"),
            TransferReport(references, scoring_models),
        ],
    )
    trainer.fit(Restyler(), datamodule=BoringDataModule())
    lines = read_jsonl(run / "transfers.jsonl")
    # In the order of the files, by the weights of the second epoch.
    found = [(line["label"], line["source"], line["reference"]) for line in lines]
    assert found == [(label, *pair) for label in ("sweet", "sour") for pair in PAIRS]
    assert [line["text"] for line in lines] == [f"{row[1][:-2]} lovely ." for row in found]
    test = json.loads((run / "test.json").read_text())
    assert test["selected"]["step"] == 4
    quality = scoring_models.quality()
    sources, labels = ([line[key] for line in lines] for key in ("source", "label"))
    for name, outputs in (("selected", [line["text"] for line in lines]), ("copying", sources)):
        corpus = quality.corpus(Samples(outputs, sources=sources, labels=labels))
        for key in ("accuracy", "similarity", "perplexity", "gm"):
            assert test[name][key] == pytest.approx(corpus[key]), (name, key)
    quality.release()
    assert test["copying"]["bleu"] != test["selected"]["bleu"]


# BLEU


def test_the_untransferred_input_has_the_papers_bleu(data_dir: Path) -> None:
    folder = data_dir / "li2018"
    files = {s: str(folder / f"reference.{i}") for i, s in enumerate(("negative", "positive"))}
    prompts = read_references(files)
    assert len(prompts) == 1000
    assert prompts.labels == ("positive",) * 500 + ("negative",) * 500
    bleu = reference_bleu(prompts.replace(texts=prompts.sources))
    assert bleu == pytest.approx(31.4, abs=0.15)  # Table 6


# Tables of several runs, whose files are written here, as a training writes them

HALVES = (5e-4, 5e-4, 0.05)  # of the last printed digit of Acc, Sim, PP


def write_run(folder: Path, validations: list[tuple[float, float, float]]) -> None:
    """Write a run of (Acc, Sim, PP) a validation."""
    log = JsonLog(folder / "metrics.jsonl")
    for i, (accuracy, similarity, perplexity) in enumerate(validations):
        gm = 10 * similarity * accuracy
        names = ("accuracy", "similarity", "perplexity", "gm")
        figures = dict(zip(names, (accuracy, similarity, perplexity, gm), strict=True))
        row = {f"score/corpus/{name}": value for name, value in figures.items()}
        log.append({"step": 100 * (i + 1), **row})
        log.append({"step": 100 * (i + 1), "loss": 1.0})


FALLING = [(0.96, 0.3, 20.0), (0.8, 0.5, 25.0), (0.7, 0.6, 30.0), (0.6, 0.7, 37.0)]
BETTER = [(0.9, 0.5, 20.0), (0.82, 0.6, 20.0), (0.8, 0.7, 20.0), (0.8, 0.65, 22.0)]


def test_the_tables_have_each_run_beside_the_paper(tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path / "m0", FALLING)
    write_run(tmp_path / "m2", BETTER)
    figures = {"accuracy": 0.8, "similarity": 0.7, "perplexity": 20.0, "gm": 21.5, "failed": 0}
    copying = {**figures, "gm": None, "bleu": 31.3}
    systems = {"selected": {**figures, "step": 300, "bleu": 20.04}, "copying": copying}
    (tmp_path / "m2" / "test.json").write_text(json.dumps(systems))
    outputs = ["--json", str(tmp_path / "table.json"), "--figure", str(tmp_path / "paths.png")]
    tables.main([*(str(tmp_path / name) for name in ("m0", "m2")), *outputs])
    text = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["accuracy"] == 0.8
    for run, model in zip(table["runs"], ("M0", "M2"), strict=True):
        nearest = run["nearest"]
        both = []
        for row in (list(nearest.values())[1:], PUBLISHED["table_2"][model]):
            accuracy, similarity, perplexity, gm = row
            both += [f"{accuracy:.3f}", f"{similarity:.3f}", f"{perplexity:.1f}", f"{gm:.1f}"]
        assert [run["run"], str(nearest["step"]), *both] in lines
    assert [run["nearest"]["step"] for run in table["runs"]] == [200, 300]
    assert table["runs"][1]["best_gm"]["step"] == 300
    assert "m2, copying, , 0.800, 0.700, 20.0, , 31.3, 31.4 (0.024)".split(", ") in lines
    assert ["m0", "4", "-1.00", "+1.00", "+1.00"] in [line[:5] for line in lines]  # Spearman's ρ
    trends = [run["trend"] for run in table["runs"]]
    assert [trend["similarity"] for trend in trends] == [pytest.approx(1), pytest.approx(0.8)]
    assert (tmp_path / "paths.png").read_bytes().startswith(b"\x89PNG")


def test_without_runs_the_papers_rows_have_gm_by_equation_1(capsys: Any) -> None:
    tables.main([])
    _, _, *lines = capsys.readouterr().out.strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == 16
    for *_, acc, sim, pp, printed, computed in rows:
        parts = (100 * float(acc) - 63, 100 * float(sim) - 71, min(97 - float(pp), float(pp) + 37))
        assert float(computed) == pytest.approx(np.prod(parts) ** (1 / 3), abs=0.051)
        assert float(computed) == pytest.approx(float(printed), abs=0.11)


def test_the_common_accuracy_is_one_that_all_runs_come_near(tmp_path: Path) -> None:
    write_run(tmp_path / "m0", [(0.98, 0.3, 20.0), (0.7, 0.5, 20.0), (0.62, 0.5, 20.0)])
    write_run(tmp_path / "m2", [(0.8, 0.3, 20.0), (0.7, 0.5, 20.0), (0.6, 0.5, 20.0)])
    runs = [read_run(tmp_path / name) for name in ("m0", "m2")]
    assert common_accuracy(runs) == 0.7  # 0.8 is 0.1 from the other run
    assert common_accuracy(runs[1:]) == 0.8  # of one run, the nearest to the paper's
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="metrics"):
        read_run(tmp_path / "empty")


def test_the_papers_figures_are_those_of_the_facts(papers_dir: Path) -> None:
    facts = (papers_dir / "textual_transfer.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:]] for line in facts.splitlines()]
    rows = [row for row in rows if row[0:1] and row[0] in PUBLISHED["table_2"] and len(row) == 10]
    for table, first in ((PUBLISHED["table_2"], 1), (PUBLISHED["table_3"], 5)):
        assert {row[0]: list(map(float, row[first : first + 4])) for row in rows} == table
        for *found, gm in table.values():  # eq. 1 of the printed figures, within their rounding
            edges = product(*((x - half, x + half) for x, half in zip(found, HALVES, strict=True)))
            by_hand = [
                (max(100 * acc - 63, 0) * max(100 * sim - 71, 0) * min(97 - pp, pp + 37)) ** (1 / 3)
                for acc, sim, pp in edges
            ]
            assert min(by_hand) - 0.05 <= gm <= max(by_hand) + 0.05
    (table_6,) = (line for line in facts.splitlines() if line.startswith("Table 6"))
    for pairs in PUBLISHED["table_6"].values():
        shown = "; ".join(f"{bleu:.1f}, {accuracy:.3f}" for bleu, accuracy in pairs)
        assert shown in table_6
