"""CTRLEval's studies of itself: each number comes out of runs of CTRLEval, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ctrlreward import CTRLEval, Samples
from ctrlreward.recipes.papers.ctrleval import biased_sample, main
from ctrlreward.scorers import LexiconSentiment

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


TASK_FILE = "task.yaml"
Study = tuple[dict[str, Any], Callable[..., CTRLEval]]


def studied(folder: Path, rows: list[tuple[Any, ...]], model: str, *options: str) -> dict[str, Any]:
    """Run the script on rated rows."""
    (folder / TASK_FILE).write_text(json.dumps(TASK))
    lines = ("\t".join(map(str, row)) + "\n" for row in rows)
    (folder / "rated.txt").write_text("".join(lines))
    given = [f"--task={folder / TASK_FILE}", f"--model={model}", f"--json={folder / 'found.json'}"]
    main([str(folder / "rated.txt"), *given, "--draws=2", "--seed=5", *options])
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.fixture(params=["encoder-decoder", "decoder-only"], scope="module")
def study(
    request: pytest.FixtureRequest,
    pegasus: str,
    tiny_causal: Callable[[str], str],
    module_folder: Path,
) -> Study:
    model = pegasus if request.param == "encoder-decoder" else tiny_causal("llama")
    folder = module_folder / request.param
    folder.mkdir()
    systems = ["--systems", *dict.fromkeys(SYSTEMS), "--baselines", "LexiconSentiment"]
    found = studied(folder, ROWS, model, *systems, f"--figure={folder / 'out.png'}")
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    return found, partial(CTRLEval, model, str(folder / TASK_FILE))


def test_tables_are_ctrleval_with_other_weights(study: Study) -> None:
    found, scorer = study
    scores = scorer().score(SAMPLES)
    rows = {(r["score"], r["rating"]): r for r in found["correlations"]
            if r["level"] == "sample"}  # fmt: skip
    for aspect, ratings in RATINGS.items():
        for name, measure in MEASURES.items():
            expected = measure(scores[aspect], ratings).statistic
            assert rows[aspect, aspect][name]["value"] == pytest.approx(expected, abs=1e-5)
    table = {(row["weights"], row["score"]): row for row in found["table_5"]}
    assert len(table) == 12
    explained = scorer().explain(SAMPLES)
    for weights, pick in (("beta", None), ("mean", None), ("max", max), ("min", min)):
        for aspect, ratings in RATINGS.items():
            if pick is None:
                folded = scorer(weights=weights).score(SAMPLES)[aspect]
            else:
                folded = [pick(e.score for e in each[aspect].evaluators) for each in explained]
            expected = stats.pearsonr(folded, ratings).statistic
            assert table[weights, aspect]["pearson"] == pytest.approx(expected, abs=1e-5)
    theirs = [table[w, "consistency"]["published"] for w in ("beta", "mean", "max", "min")]
    assert theirs == [0.2342, 0.1927, 0.1772, 0.1559]
    assert table["max", "attribute_relevance"]["published"] == 0.517


def test_figure_4_is_ctrleval_with_fewer_evaluators(study: Study) -> None:
    found, scorer = study
    rows, task = found["figure_4"], scorer().task
    assert [row["evaluators"] for row in rows] == [*range(1, len(task.evaluators) + 1)]
    explained = scorer(aspects="attribute_relevance").explain(SAMPLES)
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


def test_figures_2_and_3_have_the_baselines(study: Study) -> None:
    found, scorer = study
    scores = dict(scorer().score(SAMPLES))
    scores |= LexiconSentiment().score(SAMPLES)
    for row in found["figure_2"]:
        chosen = row["system"] == SYSTEMS
        x, y = scores[row["score"]][chosen], RATINGS[row["rating"]][chosen]
        expected = None if np.ptp(y) == 0 else pytest.approx(stats.pearsonr(x, y)[0], abs=1e-5)
        assert row["pearson"] == expected
    assert len(found["figure_2"]) == 3 * 3 * 3
    levels = {(r["rating"], r["score"], r["level"]): r for r in found["figure_3"]}
    for rating, level in product(ASPECTS, (1, 2, 3, 4)):  # on the same draws
        own, other = levels[rating, rating, level], levels[rating, "polarity", level]
        assert own["texts"] == other["texts"] == pytest.approx(sum(own["counts"]))
    value = stats.pearsonr(scores["polarity"], RATINGS["attribute_relevance"]).statistic
    assert found["baselines"]["polarity"]["pearson"] == pytest.approx(value)


def test_a_text_that_fails_is_left_out(pegasus: str, tmp_path: Path) -> None:
    rows = [*ROWS, ("positive", "", "", 3, 3, 3)]
    figure = f"--figure={tmp_path / 'out.png'}"
    found = studied(tmp_path, rows, pegasus, figure, "--example=12")
    assert {row["failed"] for row in found["correlations"]} == {1}
    rows = {(row["score"], row["rating"]): row for row in found["correlations"]}
    expected = rows["attribute_relevance", "attribute_relevance"]["pearson"]["value"]
    assert found["figure_4"][-1]["pearson"]["mean"] == pytest.approx(expected, abs=1e-9)
    (beta,) = (r for r in found["table_5"] if (r["weights"], r["score"]) == ("beta", "coherence"))
    assert beta["pearson"] == pytest.approx(rows["coherence", "coherence"]["pearson"]["value"])
    assert found["figure_5"] == []


@pytest.mark.parametrize("favoured", [1, 2, 3, 4])
def test_a_level_is_drawn_by_its_distance_from_the_favoured_one(favoured: int) -> None:
    levels = np.arange(5).repeat(4000)
    shares = biased_sample(levels, favoured, seed=3).reshape(5, 4000).mean(axis=1)
    expected = [0, *(1 / (abs(j - favoured) + 1) for j in (1, 2, 3, 4))]
    np.testing.assert_allclose(shares, expected, atol=0.03)  # four standard errors
    assert shares[favoured] == 1
