from __future__ import annotations

import sys

import numpy as np
import pytest

from ctrlreward.recipes.papers.ctrleval.evaluator_chart import bar_chart
from ctrlreward.scorers.ctrleval import Explanation, PatternScore

PATTERNS = [
    ("<gen_result> It was ", ".", "good", ("bad", "good")),
    ("Just ", "! <gen_result>", "great", ("terrible", "great")),
]


# The chart.


def chart_of(*parts: tuple[tuple, float, float], largest: int = 24):
    """The chart of patterns with a score and a weight that need not sum to 1."""
    total = sum(weight for _, _, weight in parts)
    evaluators = tuple(PatternScore(*pattern, s, weight / total) for pattern, s, weight in parts)
    score = sum(e.score * e.weight for e in evaluators)
    return bar_chart(Explanation("attribute_relevance", score, evaluators), largest)


def lengths(panel) -> list[float]:
    return [bar.get_width() for bar in panel.patches]


def test_bars_are_scores_and_weights_the_heaviest_on_top() -> None:
    figure = chart_of((PATTERNS[0], 0.2, 1.0), (PATTERNS[1], 0.8, 3.0))
    left, right = figure.axes
    assert lengths(left) == [0.8, 0.2]
    assert lengths(right) == [0.75, 0.25]
    assert [tick.get_text() for tick in left.get_yticklabels()] == [
        "Just [great]! <gen_result>",
        "<gen_result> It was [good].",
    ]
    assert left.yaxis_inverted()
    assert left.get_title("left") == "attribute relevance 0.650"
    (line,) = left.lines
    assert list(line.get_xdata()) == pytest.approx([0.65, 0.65])


def test_of_many_evaluators_the_heaviest_are_shown() -> None:
    many = [(("", "", str(i), (str(i),)), 0.5, float(i)) for i in range(1, 8)]
    left, right = chart_of(*many, largest=3).axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["[7]", "[6]", "[5]"]
    assert lengths(right) == pytest.approx([7 / 28, 6 / 28, 5 / 28])
    assert left.get_title("left") == "attribute relevance 0.500, top 3 of 7 evaluators by weight"


def test_long_texts_and_odd_ones_are_drawn(tmp_path) -> None:
    sentence = "We paid $5 for soup and $6_{ for bread,\nand \\frac was not on the menu. " * 4
    long = (sentence, " " + sentence, sentence, (sentence,))
    figure = chart_of((long, -2.0, 1.0), ((" ", " ", "$", ("$",)), -1.0, 1.0))
    figure.savefig(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 5000
    name, short = (tick.get_text() for tick in figure.axes[0].get_yticklabels())
    assert name.startswith("…")
    assert name.endswith("…")
    assert "[We paid $5 for soup and $6_{ for bread," in name
    assert len(name) < 100
    assert "\n" not in name
    assert short == "[$]"


def test_what_has_no_evaluators_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="this coherence has no evaluators, because its text"):
        bar_chart(Explanation("coherence", np.nan))


def test_no_bars_at_all_raise() -> None:
    with pytest.raises(ValueError, match="largest must be positive, got 0"):
        chart_of((PATTERNS[0], 0.2, 1.0), largest=0)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'ctrlreward\[plots\]'"):
        chart_of((PATTERNS[0], 0.2, 1.0))
