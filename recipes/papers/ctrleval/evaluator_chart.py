"""Bar chart of a CTRLEval explanation: score and weight of each pattern evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctrlreward.plots import FIRST, SECOND, finish_panel, new_figure
from ctrlreward.scorers.ctrleval import Explanation, PatternScore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Maximum characters in a row label: of the target, and of the text on each side of it.
_TARGET, _AROUND = 40, 24


def bar_chart(explanation: Explanation, largest: int = 24) -> Figure:
    """Draw the pattern evaluators behind one score, as in Figure 5 of CTRLEval.

    There is one row per evaluator, in order of decreasing weight, with the score on the left and
    the weight on the right. A dashed line marks the weighted mean of the scores, which is the
    score of the text. The row label is the pattern with the target in brackets.

    Args:
        explanation: One aspect of one text, from `CTRLEval.explain`.
        largest: Maximum number of evaluators to show; those with the largest weights are kept.

    Returns:
        A matplotlib figure; `figure.savefig(path, dpi=130)` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The explanation has no evaluators, or `largest` is not positive.
    """
    if largest < 1:
        raise ValueError(f"largest must be positive, got {largest}")
    if not explanation.evaluators:
        raise ValueError(
            f"this {explanation.aspect} has no evaluators, because its text could not be scored. "
            "Use an explanation whose score is a number."
        )
    shown = sorted(explanation.evaluators, key=lambda e: -e.weight)[:largest]
    figure = new_figure(10, 1.2 + 0.26 * len(shown))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    places = range(len(shown))
    left.barh(places, [e.score for e in shown], color=FIRST)
    left.axvline(explanation.score, color=SECOND, linestyle="--", linewidth=1.2)
    right.barh(places, [e.weight for e in shown], color=SECOND)
    # A text with two dollar signs is not a formula.
    left.set_yticks(places, [_row_label(e) for e in shown], parse_math=False)
    left.invert_yaxis()
    total = len(explanation.evaluators)
    subset = f", top {len(shown)} of {total} evaluators by weight" if len(shown) < total else ""
    name = explanation.aspect.replace("_", " ")
    title = f"{name} {explanation.score:.3f}{subset}"
    finish_panel(left, title, "score of the evaluator", grid="x")
    finish_panel(right, "", "weight", grid="x")
    return figure


def _row_label(evaluator: PatternScore) -> str:
    """Return the filled pattern around its blank, on one line."""
    left, target, right = (
        " ".join(text.split()) for text in (evaluator.left, evaluator.target, evaluator.right)
    )
    left = _shortened(left[::-1], _AROUND)[::-1]  # its end stands next to the target
    target, right = _shortened(target, _TARGET), _shortened(right, _AROUND)
    # Closing punctuation follows its word without a space.
    between = " " if right[:1].isalnum() or right[:1] in "<…" else ""
    return f"{left} [{target}]{between}{right}".strip()


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
