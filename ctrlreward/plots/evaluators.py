"""The picture of an explanation: the score and the weight of each pattern evaluator, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctrlreward.scorers.explanation import Explanation, PatternScore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRID, _TEXT = "#e4e4e7", "#3f3f46"
_FIRST, _SECOND = "#2563eb", "#d97706"

# Characters of a target, and of what stands on either side of it, that a row's name shows.
_TARGET, _AROUND = 40, 24


def bar_chart(explanation: Explanation, largest: int = 24) -> Figure:
    """Draws what a score is made of, as in Figure 5 of CTRLEval.

    One row per pattern evaluator, the heaviest first, with its score on the left (the dashed
    line is their weighted mean, the score of the text) and its weight on the right. A row is
    named by the pattern with the target in the place of the blank, in brackets.

    Args:
        explanation: One aspect of one text, from `CTRLEval.explain`.
        largest: How many evaluators to show at most.

    Returns:
        A matplotlib figure; `figure.savefig(path, dpi=130)` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The explanation has no evaluators, or `largest` is not positive.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("charts need matplotlib: pip install 'ctrlreward[demo]'") from error

    if largest < 1:
        raise ValueError(f"largest = {largest}: give a positive number of evaluators")
    if not explanation.evaluators:
        raise ValueError(
            f"this {explanation.aspect} has no evaluators, its text could not be scored: give "
            "an explanation whose score is a number"
        )
    shown = sorted(explanation.evaluators, key=lambda e: -e.weight)[:largest]
    figure = Figure(figsize=(10, 1.2 + 0.26 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    places = range(len(shown))
    left.barh(places, [e.score for e in shown], color=_FIRST)
    left.axvline(explanation.score, color=_SECOND, linestyle="--", linewidth=1.2)
    right.barh(places, [e.weight for e in shown], color=_SECOND)
    # A text may hold two dollar signs, and no formula is meant.
    left.set_yticks(places, [_name(e) for e in shown], parse_math=False)
    left.invert_yaxis()
    total = len(explanation.evaluators)
    of = f", the {len(shown)} heaviest of {total} evaluators" if len(shown) < total else ""
    name = explanation.aspect.replace("_", " ")
    _finish(left, f"{name} {explanation.score:.3f}{of}", "score of the evaluator")
    _finish(right, "", "weight")
    return figure


def _name(evaluator: PatternScore) -> str:
    """The filled pattern around its blank, on one line."""
    left, target, right = (
        " ".join(part.split()) for part in (evaluator.left, evaluator.target, evaluator.right)
    )
    if len(left) > _AROUND:
        left = "…" + left[1 - _AROUND :]
    if len(right) > _AROUND:
        right = right[: _AROUND - 1] + "…"
    if len(target) > _TARGET:
        target = target[: _TARGET - 1] + "…"
    # Closing punctuation follows its word without a space.
    between = " " if right[:1].isalnum() or right[:1] in "<…" else ""
    return f"{left} [{target}]{between}{right}".strip()


def _finish(panel: Any, title: str, axis: str) -> None:
    panel.set_title(title, fontsize=10, color=_TEXT, loc="left")
    panel.set_xlabel(axis, fontsize=8, color=_TEXT)
    panel.tick_params(labelsize=8, colors=_TEXT)
    panel.grid(axis="x", color=_GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
