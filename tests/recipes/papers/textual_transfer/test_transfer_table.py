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
from ctrlreward.cli import main
from ctrlreward.files import JsonLog
from ctrlreward.functional.transfer import SentenceScores, adjusted_gm
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED
from ctrlreward.recipes.papers.textual_transfer.transfer_baselines import corpus_transfer
from ctrlreward.recipes.papers.textual_transfer.transfer_comparisons import (
    compare_at_equal_accuracy,
    trend,
)
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
    change = {"value": 1.25, "low": -0.5, "high": None}
    report = {
        "thresholds": THRESHOLDS,
        "systems": {
            "best_gm": {**figures, "step": 300, "bleu": 20.04},
            "copying": {**figures, "gm": None, "bleu": 31.3, "meteor": 54.26},
        },
        "differences": {"best_gm - last": {"gm": change}},
        "early_stopping": {"patience": 4, "stopped_step": 300, "share_saved": 0.25, "lost": 0.5},
    }
    (folder / "test.json").write_text(json.dumps(report))


def test_the_table_has_each_run_beside_the_paper(tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path / "m0", FALLING)
    write_run(tmp_path / "m2", BETTER, seed=1)
    write_report(tmp_path / "m2")
    folders = [str(tmp_path / name) for name in ("m0", "m2", "out")]
    main(["papers", "transfer-table", *folders[:2], "--output", folders[2]])
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
    assert "Test GM, best_gm - last: +1.25 (-0.50 to undefined)." in text
    assert "stopped at step 300, saved 25% of the steps and lost 0.50" in text
    assert "m0: Spearman of Acc and step -1.00, of Sim and step +1.00, over 4" in text
    assert (tmp_path / "out" / "trajectories.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_on_literature_has_the_papers_table_3(tmp_path: Path) -> None:
    write_run(tmp_path / "literature" / "m2", BETTER)
    write_run(tmp_path / "yelp" / "m2", BETTER)
    write_report(tmp_path / "literature" / "m2")
    runs = [read_transfer_run(tmp_path / name / "m2") for name in ("literature", "yelp")]
    assert [run.corpus for run in runs] == ["Literature", "Yelp"]
    alone = write_tables(runs[:1], tmp_path / "alone")
    assert "with the paper's Table 3 (Literature):" in alone
    assert "0.692 |       0.781 |       49.9 |       12.8 |" in alone
    assert "31.4 (0.024)" not in alone  # BLEU is of Yelp's references
    both = write_tables(runs, tmp_path / "both")
    assert "with the paper's Table 3 (Literature) and Table 2 (Yelp):" in both
    assert "0.813 |       0.770 |       36.4 |       18.8 |" in both


def test_runs_are_compared_at_an_equal_accuracy_on_the_same_sentences(tmp_path: Path) -> None:
    write_run(tmp_path / "m0_s0", FALLING)
    write_run(tmp_path / "m2_s0", BETTER, seed=1)
    m0, m2 = (read_transfer_run(tmp_path / name) for name in ("m0_s0", "m2_s0"))
    assert (m0.model, m0.variant, m2.model) == ("M0", "_s0", "M2")
    found = compare_at_equal_accuracy(m0, m2, 0.8, THRESHOLDS)
    assert (found.steps, found.accuracies) == ((200, 300), (0.8, 0.8))  # 300 is before 400
    assert found.differences is not None
    a, b = m0.points[1], m2.points[2]
    for name in ("similarity", "perplexity"):
        expected = getattr(b, name) - getattr(a, name)
        assert found.differences[name].value == pytest.approx(expected)
    assert found.differences["similarity"].low > 0.15
    assert found.differences["perplexity"].high < 0
    gm = [float(adjusted_gm(*point[1:], thresholds=THRESHOLDS)) for point in (a, b)]
    assert found.differences["gm"].value == pytest.approx(gm[1] - gm[0])
    # Nearest to 0.96, no other validation is within 0.02 of it, so the pair is the next one.
    far = compare_at_equal_accuracy(m0, m2, 0.96, THRESHOLDS)
    assert far.steps == (200, 200)
    last = compare_at_equal_accuracy(m0, m2, None, THRESHOLDS)
    assert last.steps == (200, 400)
    none = compare_at_equal_accuracy(m0, m2, 0.8, THRESHOLDS, tolerance=-1)
    assert none.steps is None
    assert "so not shown" in none.sentence()


def test_tokens_are_words_and_an_end_where_a_file_has_none(tmp_path: Path) -> None:
    write_run(tmp_path / "m0", FALLING, tokens=False)  # texts of three words: 4 tokens
    write_run(tmp_path / "m2", FALLING)
    m0, m2 = runs_of(tmp_path)
    same = compare_at_equal_accuracy(m0, m2, 0.8, THRESHOLDS)
    assert same.differences is not None
    assert {tuple(estimate) for estimate in same.differences.values()} == {(0.0, 0.0, 0.0)}


def test_other_sentences_or_lost_samples_are_named(tmp_path: Path) -> None:
    for name in ("m0", "m2"):
        write_run(tmp_path / name, FALLING)
    m0, m2 = runs_of(tmp_path)
    file = tmp_path / "m2" / "samples" / "score" / "step=000200.jsonl"
    file.write_text(file.read_text().replace("sentence 7", "another"))
    with pytest.raises(ValueError, match="have transferred different dev sentences"):
        compare_at_equal_accuracy(m0, m2, 0.8, THRESHOLDS)
    file.write_text(file.read_text().replace('"accuracy"', '"acc"'))
    with pytest.raises(ValueError, match=r"200\.jsonl does not have accuracy\. Log the components"):
        m2.transfers(1)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"step=000200\.jsonl does not exist"):
        m2.transfers(1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no step of 0 or more with score/corpus/acc"):
        read_transfer_run(tmp_path / "empty")


def test_the_common_accuracy_is_one_that_all_runs_come_near(tmp_path: Path) -> None:
    write_run(tmp_path / "m0", [(0.98, 0.3, -3.0), (0.7, 0.5, -3.0), (0.62, 0.5, -3.0)])
    write_run(tmp_path / "m2", [(0.8, 0.3, -3.0), (0.7, 0.5, -3.0), (0.6, 0.5, -3.0)])
    runs = runs_of(tmp_path)
    assert common_accuracy(runs) == 0.7  # 0.8 is 0.1 from the other run
    assert common_accuracy(runs[1:]) == 0.8  # of one run, the nearest to the paper's
    later = read_transfer_run(tmp_path / "m2", first_step=101)
    assert [point.step for point in later.points] == [200, 300]
    assert common_accuracy([later]) == 0.7


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
