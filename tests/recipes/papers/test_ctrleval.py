"""CTRLEval's studies of itself: each number comes out of runs of CTRLEval, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ctrlreward import CTRLEval, Samples
from ctrlreward.recipes.papers.ctrleval import biased_sample, main, quality_levels
from ctrlreward.scorers import LexiconSentiment
from ctrlreward.scorers.task import Task

ASPECTS = ("coherence", "consistency", "attribute_relevance")
MEASURES = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
TASK = {
    "phrases": ["It was <mask_token>.", "In summary, it was <mask_token>."],
    "verbalizers": {"positive": ["good", "great"], "negative": ["bad", "terrible"]},
}
ENDS = ["We ate it all.", "It was cold.", "Nobody spoke.", "My feet hurt.", "We will come back."]
# Three systems take turns for each label and prefix, and inputs alternate in the file.
INPUTS = [
    (label, prefix) for label in ("positive", "negative") for prefix in ("The soup", "The view")
]
ROWS = [
    (label, prefix, f"{prefix} was {word}. {ENDS[(3 * turn + i) % 5]}", 1 + i, 5 - turn, rating)
    for turn, word in enumerate(("good", "awful", "as it is"))
    for i, ((label, prefix), rating) in enumerate(
        zip(INPUTS, ((4, 2, 5, 1), (1, 2, 1, 3), (3, 4, 2, 2))[turn], strict=True)
    )
]
SYSTEMS = np.repeat(["first", "second", "third"], len(INPUTS))
LABELS, PREFIXES, TEXTS = (list(column) for column in list(zip(*ROWS, strict=True))[:3])
SAMPLES = Samples(TEXTS, prefixes=PREFIXES, labels=LABELS)
RATINGS = dict(zip(ASPECTS, np.array([row[3:] for row in ROWS], float).T, strict=True))


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.yaml").write_text(json.dumps(TASK))
    write(ROWS)


def write(rows: list[tuple[Any, ...]]) -> None:
    Path("rated.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def studied(model: str, *options: str) -> dict[str, Any]:
    main(["rated.txt", "--task=task.yaml", f"--model={model}", "--json=found.json", *options])
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


@pytest.fixture(params=["encoder-decoder", "decoder-only"])
def model(request: pytest.FixtureRequest, pegasus: str, tiny_causal: Callable[[str], str]) -> str:
    return pegasus if request.param == "encoder-decoder" else tiny_causal("llama")


def test_tables_are_ctrleval_with_other_weights(model: str) -> None:
    found = studied(model, "--draws=2")
    scores = CTRLEval(model, "task.yaml").score(SAMPLES)
    rows = {(r["score"], r["rating"]): r for r in found["correlations"] if r["level"] == "sample"}
    for aspect, ratings in RATINGS.items():
        for name, measure in MEASURES.items():
            expected = measure(scores[aspect], ratings).statistic
            assert rows[aspect, aspect][name]["value"] == pytest.approx(expected, abs=1e-5)
    table = {(row["weights"], row["score"]): row for row in found["table_5"]}
    assert len(table) == 12
    explained = CTRLEval(model, "task.yaml").explain(SAMPLES)
    for weights in ("beta", "mean", "max", "min"):
        if weights in ("beta", "mean"):
            folded = dict(CTRLEval(model, "task.yaml", weights=weights).score(SAMPLES))
        else:
            pick = max if weights == "max" else min
            folded = {
                aspect: np.array(
                    [pick(e.score for e in each[aspect].evaluators) for each in explained]
                )
                for aspect in ASPECTS
            }
        for aspect, ratings in RATINGS.items():
            expected = stats.pearsonr(folded[aspect], ratings).statistic
            assert table[weights, aspect]["pearson"] == pytest.approx(expected, abs=1e-5)
    theirs = [table[w, "consistency"]["published"] for w in ("beta", "mean", "max", "min")]
    assert theirs == [0.2342, 0.1927, 0.1772, 0.1559]
    assert table["max", "attribute_relevance"]["published"] == 0.517


def test_figure_4_is_ctrleval_with_fewer_evaluators(model: str) -> None:
    rows = studied(model, "--draws=2", "--seed=5")["figure_4"]
    evaluators = len(Task.load("task.yaml").evaluators)
    assert [row["evaluators"] for row in rows] == [*range(1, evaluators + 1)]
    task = Task.load("task.yaml")
    explained = CTRLEval(model, "task.yaml", "attribute_relevance").explain(SAMPLES)
    for row in rows[::3]:
        values = []
        for seed in (5, 6):
            chosen = [task.evaluators.index(e) for e in task.subset(row["evaluators"], seed)]
            scores = []
            for each in explained:
                evaluators = [each["attribute_relevance"].evaluators[i] for i in chosen]
                weights = [e.weight for e in evaluators]
                scores.append(np.average([e.score for e in evaluators], weights=weights))
            values.append(stats.pearsonr(scores, RATINGS["attribute_relevance"]).statistic)
        assert row["pearson"]["mean"] == pytest.approx(np.mean(values), abs=1e-5)
        assert row["pearson"]["deviation"] == pytest.approx(np.std(values), abs=1e-5)
    assert rows[0]["pearson"]["deviation"] > 1e-3
    assert rows[-1]["pearson"]["deviation"] == pytest.approx(0, abs=1e-12)


def test_figures_2_and_3_have_the_baselines_and_are_drawn(pegasus: str) -> None:
    systems = ["--systems", "first", "second", "third", "--baselines", "LexiconSentiment"]
    found = studied(pegasus, *systems, "--draws=3", "--figure=out.png")
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    scores = dict(CTRLEval(pegasus, "task.yaml").score(SAMPLES))
    scores["polarity"] = LexiconSentiment("polarity").score(TEXTS)["polarity"]
    by_system = {(r["score"], r["rating"], r["system"]): r["pearson"] for r in found["figure_2"]}
    for rating in ASPECTS:
        for score in (rating, "polarity"):
            for system in dict.fromkeys(SYSTEMS):
                chosen = system == SYSTEMS
                x, y = scores[score][chosen], RATINGS[rating][chosen]
                value = by_system[score, rating, system]
                if np.ptp(y) == 0:
                    assert value is None
                else:
                    assert value == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-5)
    levels = {(r["rating"], r["score"], r["level"]): r for r in found["figure_3"]}
    for rating in ASPECTS:
        for level in (1, 2, 3, 4):  # on the same draws
            own, other = levels[rating, rating, level], levels[rating, "polarity", level]
            assert own["texts"] == other["texts"] == pytest.approx(sum(own["counts"]))
    value = stats.pearsonr(scores["polarity"], RATINGS["attribute_relevance"]).statistic
    assert found["baselines"]["polarity"]["pearson"] == pytest.approx(value)


def test_a_text_that_fails_is_left_out(pegasus: str) -> None:
    write([*ROWS, ("positive", "", "", 3, 3, 3)])
    found = studied(pegasus, "--draws=2", "--figure=out.png", "--example=12")
    assert {row["failed"] for row in found["correlations"]} == {1}
    rows = {(row["score"], row["rating"]): row for row in found["correlations"]}
    expected = rows["attribute_relevance", "attribute_relevance"]["pearson"]["value"]
    assert found["figure_4"][-1]["pearson"]["mean"] == pytest.approx(expected, abs=1e-9)
    (beta,) = (r for r in found["table_5"] if (r["weights"], r["score"]) == ("beta", "coherence"))
    assert beta["pearson"] == pytest.approx(rows["coherence", "coherence"]["pearson"]["value"])
    assert found["figure_5"] == []


@given(st.lists(st.just(np.nan) | st.integers(1, 5).map(float), min_size=1, max_size=40))
def test_levels_keep_the_order_of_the_ratings(ratings: list[float]) -> None:
    found = quality_levels(np.array(ratings))
    rated = [(r, int(level)) for r, level in zip(ratings, found, strict=True) if not np.isnan(r)]
    assert all(level == 0 for r, level in zip(ratings, found, strict=True) if np.isnan(r))
    for r, level in rated:
        assert 1 <= level <= 4
        assert all(level <= other for s, other in rated if s > r)
    for r in {r for r, _ in rated}:  # equal ratings are in the order of the rows
        assert (same := [level for s, level in rated if s == r]) == sorted(same)
    sizes = [sum(level == of for _, of in rated) for level in (1, 2, 3, 4)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("favoured", [1, 2, 3, 4])
def test_a_level_is_drawn_by_its_distance_from_the_favoured_one(favoured: int) -> None:
    levels = np.arange(5).repeat(4000)
    shares = biased_sample(levels, favoured, seed=3).reshape(5, 4000).mean(axis=1)
    expected = [0, *(1 / (abs(j - favoured) + 1) for j in (1, 2, 3, 4))]
    np.testing.assert_allclose(shares, expected, atol=0.03)  # four standard errors
    assert shares[favoured] == 1
