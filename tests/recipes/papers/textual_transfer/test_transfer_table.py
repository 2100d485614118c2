"""Table 2 from runs whose files are written here, as a training writes them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ctrlreward import Samples
from ctrlreward.files import JsonLog
from ctrlreward.functional.transfer import SentenceScores
from ctrlreward.recipes.papers.textual_transfer import transfer_table
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED
from ctrlreward.recipes.papers.textual_transfer.transfer_baselines import corpus_transfer
from ctrlreward.recipes.papers.textual_transfer.transfer_comparisons import trend
from ctrlreward.recipes.papers.textual_transfer.transfer_runs import (
    TransferRun,
    common_accuracy,
    read_transfer_run,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_table import write_tables
from ctrlreward.scorers.records import write_scored_samples

THRESHOLDS = (10.0, 0.0, 97.0, -37.0)
N = 50
HALVES = (5e-4, 5e-4, 0.05)  # of the last printed digit of Acc, Sim, PP


def write_run(
    folder: Path, validations: list[tuple[float, float, float]], tokens: bool = True, seed: int = 0
) -> None:
    """Write a run of (Acc, Sim, log-likelihood) a validation, on the same sentences each."""
    random = np.random.default_rng(seed)
    log = JsonLog(folder / "metrics.jsonl")
    for i, (accuracy, similarity, likelihood) in enumerate(validations):
        scores = {
            "accuracy": (np.arange(N) < accuracy * N).astype(float),
            "similarity": similarity + random.uniform(-0.1, 0.1, N),
            "log_likelihood": likelihood + random.uniform(-0.2, 0.2, N),
            "tokens": np.full(N, 4.0),
        }
        corpus = corpus_transfer(SentenceScores(*scores.values()), THRESHOLDS)
        if not tokens:
            del scores["tokens"]
        samples = Samples(
            [f"a text {seed}"] * N,
            sources=[f"sentence {k}" for k in range(N)],
            labels=["sweet"] * N,
        )
        step = 100 * (i + 1)
        write_scored_samples(
            folder / "samples" / "score" / f"step={step:06d}.jsonl", samples, scores
        )
        names = ("accuracy", "similarity", "perplexity", "gm")
        row = {f"score/corpus/{name}": getattr(corpus, name) for name in names}
        log.append({"step": step, **row})
        log.append({"step": step, "loss": 1.0})


FALLING = [(0.96, 0.3, -3.0), (0.8, 0.5, -3.2), (0.7, 0.6, -3.4), (0.6, 0.7, -3.6)]
BETTER = [(0.9, 0.5, -3.0), (0.82, 0.6, -3.0), (0.8, 0.7, -3.0), (0.8, 0.65, -3.1)]


def runs_of(folder: Path) -> list[TransferRun]:
    return [read_transfer_run(folder / name) for name in ("m0", "m2")]


def write_report(folder: Path) -> None:
    figures = {"accuracy": 0.8, "similarity": 0.7, "perplexity": 20.0, "gm": 21.5, "failed": 0}
    report = {
        "thresholds": THRESHOLDS,
        "systems": {
            "best_gm": {**figures, "step": 300, "bleu": 20.04},
            "copying": {**figures, "gm": None, "bleu": 31.3, "meteor": 54.26},
        },
    }
    (folder / "test.json").write_text(json.dumps(report))


def test_the_table_has_each_run_beside_the_paper(tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path / "m0", FALLING)
    write_run(tmp_path / "m2", BETTER, seed=1)
    write_report(tmp_path / "m2")
    folders = [str(tmp_path / name) for name in ("m0", "m2", "out")]
    transfer_table.main([*folders[:2], "--output", folders[2]])
    text = (tmp_path / "out" / "table.md").read_text()
    assert capsys.readouterr().out == text
    assert "of which the package lacks the six rows of earlier models" in text
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert table["accuracy"] == 0.8
    for run, model in zip(table["runs"], ("M0", "M2"), strict=True):
        nearest = run["nearest"]
        shown = [f"{nearest[key]:.3f}" for key in ("accuracy", "similarity")]
        shown += [f"{nearest[key]:.1f}" for key in ("perplexity", "gm")]
        accuracy, similarity, perplexity, gm = PUBLISHED["table_2"][model]
        paper = [f"{accuracy:.3f}", f"{similarity:.3f}", f"{perplexity:.1f}", f"{gm:.1f}"]
        assert [run["run"], str(nearest["step"]), *shown, *paper] in lines
    assert [run["nearest"]["step"] for run in table["runs"]] == [200, 300]
    assert table["runs"][1]["best_gm"]["step"] == 300
    copying = "m2, copying, , 0.800, 0.700, 20.0, , 31.3, 54.3, 31.4 (0.024)"
    assert copying.split(", ") in lines
    assert "m0: Spearman of Acc and step -1.00, of Sim and step +1.00, over 4" in text
    assert (tmp_path / "out" / "trajectories.png").read_bytes().startswith(b"\x89PNG")


def test_runs_have_the_table_of_their_corpus(tmp_path: Path) -> None:
    for corpus in ("literature", "yelp"):
        write_run(tmp_path / corpus / "m2", BETTER)
    runs = [read_transfer_run(tmp_path / name / "m2") for name in ("literature", "yelp")]
    table = write_tables(runs, tmp_path / "both")
    for gm in (PUBLISHED["table_3"]["M2"][-1], PUBLISHED["table_2"]["M2"][-1]):
        assert f"{gm:.1f} |" in table


def test_the_common_accuracy_is_one_that_all_runs_come_near(tmp_path: Path) -> None:
    write_run(tmp_path / "m0", [(0.98, 0.3, -3.0), (0.7, 0.5, -3.0), (0.62, 0.5, -3.0)])
    write_run(tmp_path / "m2", [(0.8, 0.3, -3.0), (0.7, 0.5, -3.0), (0.6, 0.5, -3.0)])
    runs = runs_of(tmp_path)
    assert common_accuracy(runs) == 0.7  # 0.8 is 0.1 from the other run
    assert common_accuracy(runs[1:]) == 0.8  # of one run, the nearest to the paper's
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no step with score/corpus/acc"):
        read_transfer_run(tmp_path / "empty")


def test_the_trend_is_scipys_rank_correlation_or_undefined(tmp_path: Path) -> None:
    write_run(tmp_path / "m0", [(0.9, 0.3, -3.0), (0.7, 0.5, -3.0), (0.8, 0.4, -3.5)])
    run = read_transfer_run(tmp_path / "m0")
    found = trend(run)
    for name in ("accuracy", "similarity", "perplexity"):
        values = [getattr(point, name) for point in run.points]
        assert found[name] == pytest.approx(stats.spearmanr([1, 2, 3], values).statistic)
    write_run(tmp_path / "m2", [(0.9, 0.3, -3.0)])
    assert trend(read_transfer_run(tmp_path / "m2"))["accuracy"] is None


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
