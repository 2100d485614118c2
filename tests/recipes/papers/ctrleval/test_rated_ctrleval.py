"""Studies of `ctrlreward meta-eval ctrleval`: each number comes out of runs of CTRLEval, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from ctrlreward import CTRLEval, Samples
from ctrlreward.cli import main
from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.scorers import LexiconSentiment
from ctrlreward.scorers.ctrleval import relevance_blanks
from ctrlreward.scorers.task import Task

ASPECTS = ("coherence", "consistency", "attribute_relevance")
MEASURES = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
TEXTS = [
    "The soup was warm and rich. We ate it all.",
    "The soup came late. It was cold, and the staff was rude.",
    "The soup had no taste at all.",
    "The view was great. Nobody spoke.",
    "The view was fine, if you like fog. I do not.",
    "The view from here is good. The lake froze over.",
    "The soup was good! We will come back.",
    "The view was bad, and the walk was long. My feet hurt.",
]
PREFIXES = [text[:8] for text in TEXTS]
LABELS = ["positive", "negative"] * 4
RATINGS = np.array(
    [[4.2, 2, 3.1, 1.4, 3.6, 2.2, 5, 2.2], [1, 3, 2, 5, 4, 2, 3, 1], [3, 1, 4, 2, 2, 5, 1.5, 4]]
)
SAMPLES = Samples(TEXTS, prefixes=PREFIXES, labels=LABELS)
OPTIONS = ["--ablation=true", "--quality-levels=out/q.png", "--evaluator-counts=out/e.png"]
COMMAND = ["meta-eval", "ctrleval", "--data=rated.txt", "--resamples=20"]
PHRASES = ["It was <mask_token>.", "In summary, it was <mask_token>."]
TASK = {
    "phrases": PHRASES,
    "verbalizers": {"positive": ["good", "great"], "negative": ["bad", "terrible"]},
}


def write(rows: Iterable[tuple[object, ...]]) -> None:
    Path("rated.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    write(zip(LABELS, PREFIXES, TEXTS, *RATINGS.tolist(), strict=True))
    Path("task.yaml").write_text(json.dumps(TASK))


def report(model: str, *options: str) -> dict[str, Any]:
    main([*COMMAND, f"--model={model}", "--task=task.yaml", "--output=found.json", *options])
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


def assert_correlated(
    row: dict[str, Any], scores: np.ndarray, ratings: np.ndarray, within: float = 1e-6
) -> None:
    for name, measure in MEASURES.items():
        if np.ptp(ratings) == 0:
            assert row[name] is None
        else:
            assert row[name] == pytest.approx(measure(scores, ratings).statistic, abs=within)


@pytest.fixture(params=["encoder-decoder", "decoder-only"])
def model(request: pytest.FixtureRequest, pegasus: str, tiny_causal: Callable[[str], str]) -> str:
    return pegasus if request.param == "encoder-decoder" else tiny_causal("llama")


def folded(model: str, weights: str) -> dict[str, np.ndarray]:
    """Scores by aspect: CTRLEval's own, or the highest or lowest of the explained evaluators."""
    if weights in ("beta", "mean"):
        return dict(CTRLEval(model, "task.yaml", weights=weights).score(SAMPLES))
    explained, pick = (
        CTRLEval(model, "task.yaml").explain(SAMPLES),
        max if weights == "max" else min,
    )
    return {
        aspect: np.array([pick(e.score for e in parts[aspect].evaluators) for parts in explained])
        for aspect in ASPECTS
    }


def test_ablation_is_ctrleval_with_other_weights(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(model, "--ablation=true")
    rows = {(row["weights"], row["score"]): row for row in found["ablation"]}
    assert len(rows) == 12
    printed = capsys.readouterr().out
    for weights in ("beta", "mean", "max", "min"):
        scores = folded(model, weights)
        for aspect, ratings in zip(ASPECTS, RATINGS, strict=True):
            row = rows[weights, aspect]
            assert_correlated(row, scores[aspect], ratings)
            assert f"{row['pearson']:.4f} ({row['published']:.4f})" in printed
    # Table 5 of the paper.
    published = [rows[w, "consistency"]["published"] for w in ("beta", "mean", "max", "min")]
    assert published == [0.2342, 0.1927, 0.1772, 0.1559]
    assert rows["max", "attribute_relevance"]["published"] == 0.517


def test_counts_are_ctrleval_with_fewer_evaluators(pegasus: str) -> None:
    found = report(pegasus, "--evaluator-counts=e.png", "--draws=2", "--seed=5")["evaluator_counts"]
    assert found["draws"] == 2
    evaluators = len(Task.load("task.yaml").evaluators)
    assert [row["evaluators"] for row in found["rows"]] == [*range(1, evaluators + 1)]
    for row in found["rows"][::3]:
        scores = []
        for seed in (5, 6):
            scorer = CTRLEval(pegasus, "task.yaml", "attribute_relevance")
            scorer.pattern_evaluators = scorer.task.subset(row["evaluators"], seed)
            scorer._prompts = relevance_blanks(scorer.pattern_evaluators)
            scores.append(scorer.score(SAMPLES)["attribute_relevance"])
        for name, measure in MEASURES.items():
            values = [measure(each, RATINGS[2]).statistic for each in scores]
            assert row[name]["mean"] == pytest.approx(np.mean(values), abs=1e-6)
            assert row[name]["deviation"] == pytest.approx(np.std(values), abs=1e-6)
    assert found["rows"][0]["pearson"]["deviation"] > 1e-3
    assert found["rows"][-1]["pearson"]["deviation"] == pytest.approx(0, abs=1e-12)


# Three systems take turns for each label and prefix, and inputs alternate in the file.
INPUTS = [
    (label, prefix) for label in ("positive", "negative") for prefix in ("The soup", "The view")
]
TURNS = [
    (label, prefix, f"{prefix} was {word}. {TEXTS[(3 * turn + i) % 8]}", 1 + i, 5 - turn, rating)
    for turn, word in enumerate(("good", "awful", "as it is"))
    for i, ((label, prefix), rating) in enumerate(
        zip(INPUTS, ((4, 2, 5, 1), (1, 2, 1, 3), (3, 4, 2, 2))[turn], strict=True)
    )
]
SYSTEMS = [name for name in ("first", "second", "third") for _ in INPUTS]
COMPARED = ["--systems", "first", "second", "third", "--baselines", "LexiconSentiment"]
COMPARED += ["--baselines.aspects=polarity"]


def compare(pegasus: str, *options: str) -> dict[str, Any]:
    write(TURNS)
    return report(pegasus, *COMPARED, *options)


def test_systems_are_inferred_from_the_position_of_rows(
    pegasus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare(pegasus, "--by-system=out/s.png")
    printed = capsys.readouterr().out
    assert found["systems_inferred"]
    assert "Systems: first, second, third, inferred from the position of the rows" in printed
    assert Path("out/s.png").read_bytes().startswith(b"\x89PNG")
    texts = [row[2] for row in TURNS]
    prefixes, labels = ([row[k] for row in TURNS] for k in (1, 0))
    scores = dict(CTRLEval(pegasus, "task.yaml").score(texts, prefixes=prefixes, labels=labels))
    scores["polarity"] = LexiconSentiment("polarity").score(texts)["polarity"]
    by_system = {(r["score"], r["rating"], r["system"]): r for r in found["by_system"]}
    assert len(by_system) == 3 * 2 * 3
    systems = [r for r in found["correlations"] if r["level"] == "system"]
    between = {(r["score"], r["rating"]): r for r in systems}
    for k, rating in enumerate(ASPECTS, 3):
        ratings = np.array([row[k] for row in TURNS], dtype=float)
        for score in (rating, "polarity"):
            rows = {s: np.array(SYSTEMS) == s for s in dict.fromkeys(SYSTEMS)}
            for system, chosen in rows.items():
                one = by_system[score, rating, system]
                assert_correlated(one, scores[score][chosen], ratings[chosen], 1e-5)
            means = [scores[score][chosen].mean() for chosen in rows.values()]
            rated = [ratings[chosen].mean() for chosen in rows.values()]
            value = between[score, rating]["pearson"]["value"]
            if np.ptp(rated) > 0:
                assert value == pytest.approx(stats.pearsonr(means, rated).statistic, abs=1e-5)


def test_baselines_are_in_the_figures(pegasus: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(pegasus, "--quality-levels=q.png", "--evaluator-counts=e.png", "--draws=3")
    printed = capsys.readouterr().out
    levels = found["quality_levels"]["rows"]
    scored = [(aspect, score) for aspect in ASPECTS for score in (aspect, "polarity")]
    expected = [(*pair, level) for pair in scored for level in (1, 2, 3, 4)]
    assert [(row["rating"], row["score"], row["level"]) for row in levels] == expected
    for first, second in zip(levels[:4], levels[4:8], strict=True):  # on the same draws
        assert first["texts"] == second["texts"]
    polarity = LexiconSentiment("polarity").score([row[2] for row in TURNS])["polarity"]
    line = found["evaluator_counts"]["baselines"]["polarity"]
    value = stats.pearsonr(polarity, [row[5] for row in TURNS]).statistic
    assert line["pearson"] == pytest.approx(value)
    assert f"{value:.4f}" in printed


def test_studies_change_no_score_and_run_no_model_again(
    pegasus: str, monkeypatch: pytest.MonkeyPatch, drawn: list[Figure]
) -> None:
    calls: list[int] = []
    plain = Seq2SeqInfiller._score

    def counted(self: Seq2SeqInfiller, groups: list[Any]) -> dict[Any, Any]:
        calls.append(len(groups))
        return plain(self, groups)

    monkeypatch.setattr(Seq2SeqInfiller, "_score", counted)
    without = report(pegasus)
    alone, calls[:] = sum(calls), []
    with_all = report(pegasus, *OPTIONS, "--scores=rows.jsonl")
    assert sum(calls) == alone
    assert with_all["correlations"] == without["correlations"]
    studies = {"ablation", "quality_levels", "evaluator_counts"}
    assert set(with_all) - set(without) == studies
    for picture in ("out/q.png", "out/e.png"):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")
    levels, counts = drawn
    above, below = levels.axes[:3], levels.axes[3:]
    titles = [panel.get_title(loc="left") for panel in below]
    assert titles == ["coherence", "consistency", "attribute relevance"]
    for panel, row in zip(above, with_all["quality_levels"]["rows"][::4], strict=True):
        bars = [bar.get_height() for bar in panel.patches[::4]]  # of level 1
        assert bars == pytest.approx(row["counts"])
        assert len(panel.patches) == 16
    for panels, study in ((below, "quality_levels"), (counts.axes, "evaluator_counts")):
        rows = with_all[study]["rows"]
        means = [row["pearson"]["mean"] for row in rows]
        lines = [line for panel in panels for line in panel.lines]
        assert np.concatenate([line.get_ydata() for line in lines]) == pytest.approx(means)
    assert len(Path("rows.jsonl").read_text().splitlines()) == 8


def test_a_text_that_fails_is_left_out(pegasus: str) -> None:
    with open("rated.txt", "a") as file:
        file.write("positive\t\t\t3\t3\t3\n")
    found = report(pegasus, *OPTIONS, "--draws=2")
    (failed,) = {row["failed"] for row in found["correlations"]}
    assert failed == 1
    for row in found["ablation"]:
        assert np.isfinite(row["pearson"])
    last = found["evaluator_counts"]["rows"][-1]["pearson"]["mean"]
    rows = {(row["score"], row["rating"]): row for row in found["correlations"]}
    expected = rows["attribute_relevance", "attribute_relevance"]["pearson"]["value"]
    assert last == pytest.approx(expected, abs=1e-9)
