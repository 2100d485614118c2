"""Studies of `ctrlreward meta-eval ctrleval`: each number comes out of runs of CTRLEval, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from ctrlreward import CTRLEval, Samples
from ctrlreward.cli import main
from ctrlreward.models.seq2seq import Seq2SeqInfiller
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


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    rows = zip(LABELS, PREFIXES, TEXTS, *RATINGS.tolist(), strict=True)
    Path("rated.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    Path("task.yaml").write_text(json.dumps(TASK))


def report(model: str, *options: str) -> dict[str, Any]:
    main([*COMMAND, f"--model={model}", "--task=task.yaml", "--output=found.json", *options])
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


@pytest.fixture(params=["encoder-decoder", "decoder-only"])
def model(request: pytest.FixtureRequest, pegasus: str, tiny_causal: Callable[[str], str]) -> str:
    return pegasus if request.param == "encoder-decoder" else tiny_causal("llama")


def test_ablation_is_ctrleval_with_other_weights(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(model, "--ablation=true")
    rows = {(row["weights"], row["score"]): row for row in found["ablation"]}
    assert len(rows) == 12
    printed = capsys.readouterr().out
    for weights in ("beta", "mean", "max", "min"):
        scores = CTRLEval(model, "task.yaml", weights=weights).score(SAMPLES)
        for aspect, ratings in zip(ASPECTS, RATINGS, strict=True):
            row = rows[weights, aspect]
            for name, measure in MEASURES.items():
                expected = measure(scores[aspect], ratings).statistic
                assert row[name] == pytest.approx(expected, abs=1e-6)
            assert f"{row['pearson']:.4f} ({row['published']:.4f})" in printed
    # Table 5 of the paper.
    published = [rows[w, "consistency"]["published"] for w in ("beta", "mean", "max", "min")]
    assert published == [0.2342, 0.1927, 0.1772, 0.1559]
    assert rows["max", "attribute_relevance"]["published"] == 0.517


def test_counts_are_ctrleval_with_fewer_evaluators(model: str) -> None:
    found = report(model, "--evaluator-counts=e.png", "--draws=2", "--seed=5")["evaluator_counts"]
    assert found["draws"] == 2
    evaluators = len(Task.load("task.yaml").evaluators)
    assert [row["evaluators"] for row in found["rows"]] == [*range(1, evaluators + 1)]
    for row in found["rows"][::3]:
        drawn = [
            CTRLEval(
                *(model, "task.yaml", "attribute_relevance"),
                evaluators=row["evaluators"],
                seed=seed,
            ).score(SAMPLES)["attribute_relevance"]
            for seed in (5, 6)
        ]
        for name, measure in MEASURES.items():
            values = [measure(scores, RATINGS[2]).statistic for scores in drawn]
            assert row[name]["mean"] == pytest.approx(np.mean(values), abs=1e-6)
            assert row[name]["deviation"] == pytest.approx(np.std(values), abs=1e-6)
    assert found["rows"][0]["pearson"]["deviation"] > 1e-3
    assert found["rows"][-1]["pearson"]["deviation"] == pytest.approx(0, abs=1e-12)


def test_levels_are_biased_samples_of_the_rows(pegasus: str) -> None:
    found = report(pegasus, "--quality-levels=q.png", "--draws=100")["quality_levels"]
    scores = CTRLEval(pegasus, "task.yaml", "coherence").score(SAMPLES)["coherence"]
    assert [(row["score"], row["level"]) for row in found["rows"]] == [
        (aspect, level) for aspect in ASPECTS for level in (1, 2, 3, 4)
    ]
    # The ratings of coherence in quarters: 1.4 2 | 2.2 2.2 | 3.1 3.6 | 4.2 5.
    levels = [4, 1, 3, 1, 3, 2, 4, 2]
    subsets = [np.array(bits, dtype=bool) for bits in product((0, 1), repeat=8) if sum(bits) >= 3]
    subsets = [bits for bits in subsets if np.ptp(RATINGS[0][bits]) > 0]
    values = [stats.pearsonr(scores[bits], RATINGS[0][bits]).statistic for bits in subsets]
    for row in found["rows"][:4]:
        chances = np.array([1 / (abs(level - row["level"]) + 1) for level in levels])
        assert row["texts"] == pytest.approx(chances.sum(), abs=0.4)
        odds = [np.where(bits, chances, 1 - chances).prod() for bits in subsets]
        mean = np.average(values, weights=odds)
        deviation = np.average((np.array(values) - mean) ** 2, weights=odds) ** 0.5
        assert row["pearson"]["mean"] == pytest.approx(mean, abs=0.15)
        assert row["pearson"]["deviation"] == pytest.approx(deviation, abs=0.1)


def test_studies_change_no_score_and_run_no_model_again(
    pegasus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    plain = Seq2SeqInfiller._score

    def counted(self: Seq2SeqInfiller, groups: list[Any]) -> dict[Any, Any]:
        calls.append(len(groups))
        return plain(self, groups)

    monkeypatch.setattr(Seq2SeqInfiller, "_score", counted)
    without = report(pegasus)
    alone, calls[:] = sum(calls), []
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    with_all = report(pegasus, *OPTIONS, "--scores=rows.jsonl")
    assert sum(calls) == alone
    assert with_all["correlations"] == without["correlations"]
    assert set(with_all) - set(without) == {"ablation", "quality_levels", "evaluator_counts"}
    for picture in ("out/q.png", "out/e.png"):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")
    levels, counts = drawn
    assert [panel.get_title(loc="left") for panel in levels.axes] == [
        aspect.replace("_", " ") for aspect in ASPECTS
    ]
    for panels, study in ((levels.axes, "quality_levels"), (counts.axes, "evaluator_counts")):
        rows = with_all[study]["rows"]
        means = [row["kendall"]["mean"] for row in rows]
        lines = [panel.lines[2] for panel in panels]
        assert [line.get_label() for line in lines] == ["Kendall τ-b"] * len(lines)
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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--quality-levels=q.svg", "plot = q.svg: give a file that ends in .png"),
        ("--evaluator-counts=e", "plot = e: give a file that ends in .png"),
        ("--draws=0", "draws = 0: give a positive number"),
    ],
)
def test_options_are_checked_before_the_file_is_read(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rated.txt").unlink()
    with pytest.raises(SystemExit):
        main([*COMMAND, option])
    assert message in " ".join(capsys.readouterr().err.split())
