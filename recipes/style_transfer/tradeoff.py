"""Trade-off of style, content and fluency over training (Pang & Gimpel 2019, Figure 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from ctrlreward.files import finite_or_none
from ctrlreward.plots import SERIES, finish_panel, mark_steps, new_figure, save_figure

_MARKERS = "osD^vP"


class TransferPoint(NamedTuple):
    """Quality of a style transfer policy at one validation.

    Attributes:
        step: Training step.
        accuracy: Share of texts with the target style, 0 to 1; higher is better.
        similarity: Mean cosine with the sources, -1 to 1; higher is better.
        perplexity: Perplexity of the texts, 1 or more; lower is better.
    """

    step: int
    accuracy: float
    similarity: float
    perplexity: float


class GMPath:
    """Base of a run's validations, which finds some of them by accuracy and by GM.

    Attributes:
        points: n validations, in the order of their steps.
        gm: GM of each, NaN where it was not logged.
    """

    points: Sequence[TransferPoint]
    gm: Sequence[float]

    def nearest(self, accuracy: float) -> int:
        """Return the index of the validation nearest to an accuracy; of equals, the best by GM."""
        return min(
            range(len(self.points)),
            key=lambda i: (round(abs(self.points[i].accuracy - accuracy), 9), -self._rank(i)),
        )

    def best(self) -> int:
        """Return the index of the validation with the highest GM, the first of equals."""
        return max(range(len(self.points)), key=self._rank)

    def row(self, i: int) -> dict[str, float | None]:
        """Return step, metrics and GM of a validation."""
        return {**self.points[i]._asdict(), "gm": finite_or_none(self.gm[i])}

    def _rank(self, i: int) -> float:
        return self.gm[i] if isfinite(self.gm[i]) else -1.0


def transfer_path(
    accuracy: Mapping[int, float], similarity: Mapping[int, float], perplexity: Mapping[int, float]
) -> list[TransferPoint]:
    """Return the validations at which all three metrics are finite, in the order of their steps.

    Args:
        accuracy: Step → accuracy.
        similarity: Step → similarity.
        perplexity: Step → perplexity.

    Examples:
        >>> transfer_path({5: 0.5, 10: 0.6}, {5: 0.7, 10: 0.8}, {10: 40.0})
        [TransferPoint(step=10, accuracy=0.6, similarity=0.8, perplexity=40.0)]
    """
    points = []
    for step in sorted(accuracy):
        values = [curve.get(step, float("nan")) for curve in (accuracy, similarity, perplexity)]
        if all(map(isfinite, values)):
            points.append(TransferPoint(step, *values))
    return points


def draw_transfer_paths(
    runs: Sequence[tuple[str, Sequence[TransferPoint]]], path: Path | str
) -> None:
    """Draw runs as a PNG, one point per validation, joined in their order.

    The left panel has the error rate, 1 - accuracy, on x and the similarity on y, so that upper
    left is better; the right one the similarity on x and the perplexity on y, so that lower right
    is better. Steps are shown at all points of a single run, and at the last points of several.

    Args:
        runs: Name and validations of each run.
        path: The PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(4.8 * 2, 3.8)
    left, right = figure.subplots(1, 2)
    for number, (name, points) in enumerate(runs):
        colour = SERIES[number % len(SERIES)]
        marker = _MARKERS[number // len(SERIES) % len(_MARKERS)]
        sides = [
            (left, [(1 - point.accuracy, point.similarity) for point in points]),
            (right, [(point.similarity, point.perplexity) for point in points]),
        ]
        shown = slice(None) if len(runs) == 1 else slice(-1, None)
        for panel, pairs in sides:
            xs, ys = zip(*pairs, strict=True)
            panel.plot(xs, ys, color=colour, marker=marker, markersize=4, linewidth=1, label=name)
            mark_steps(panel, [point.step for point in points[shown]], pairs[shown])
    several = len(runs) > 1
    finish_panel(left, "content against style", "error rate ↓", "similarity ↑", legend=several)
    finish_panel(right, "fluency against content", "similarity ↑", "perplexity ↓")
    save_figure(figure, Path(path))
