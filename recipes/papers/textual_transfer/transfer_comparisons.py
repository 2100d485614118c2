"""Comparisons over validations: trends of one run, and two runs at an equal accuracy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from ctrlreward.files import finite_or_none
from ctrlreward.functional.bootstrap import Estimate
from ctrlreward.functional.transfer import paired_transfer_bootstrap
from ctrlreward.recipes.papers.meta_eval.rating_correlation import sample_correlations
from ctrlreward.recipes.papers.textual_transfer.transfer_runs import TransferRun

TOLERANCE = 0.02


@dataclass(frozen=True)
class Comparison:
    """Difference of two runs at validations of an equal accuracy.

    Attributes:
        first: Name of the first run.
        second: Name of the second run.
        steps: Steps of the two validations; None if no two have an equal accuracy.
        accuracies: Their accuracies.
        differences: Figure → second - first on the same dev sentences, with its 95 % interval.
    """

    first: str
    second: str
    steps: tuple[int, int] | None = None
    accuracies: tuple[float, float] | None = None
    differences: dict[str, Estimate] | None = None

    def sentence(self) -> str:
        """Return the comparison in words."""
        if self.steps is None or self.accuracies is None or self.differences is None:
            return (
                f"{self.second} - {self.first}: no two validations within {TOLERANCE} of each "
                "other's Acc, so not shown."
            )
        shown = {"Sim": ("similarity", 3), "PP": ("perplexity", 1), "GM": ("gm", 1)}
        parts = [
            f"{name} {e.value:+.{n}f} ({e.low:+.{n}f} to {e.high:+.{n}f})"
            for name, (key, n) in shown.items()
            for e in (self.differences[key],)
        ]
        (a, b), (x, y) = self.steps, self.accuracies
        return (
            f"{self.second} - {self.first} at equal Acc ({y:.3f} at step {b}, {x:.3f} at step "
            f"{a}): {', '.join(parts)}; 95 % intervals over dev sentences."
        )

    def plain(self) -> dict[str, Any]:
        """Return the comparison as JSON values, null if undefined."""
        found = self.differences or {}
        return {
            **asdict(self),
            "differences": {name: plain_estimate(each) for name, each in found.items()},
        }


def trend(run: TransferRun) -> dict[str, float | None]:
    """Return Spearman's ρ of each figure with the step over n validations, None where undefined.

    There is no interval, since the validations of a run are not independent draws.
    """
    steps = [point.step for point in run.points]
    columns = {name: [getattr(p, name) for p in run.points] for name in run.points[0]._fields[1:]}
    return {"n": len(steps)} | {
        name: finite_or_none(sample_correlations(steps, values, resamples=1).spearman.value)
        for name, values in {**columns, "gm": run.gm}.items()
    }


def compare_at_equal_accuracy(
    first: TransferRun,
    second: TransferRun,
    accuracy: float | None,
    thresholds: tuple[float, float, float, float],
    tolerance: float = TOLERANCE,
) -> Comparison:
    """Compare two runs at a validation each whose accuracies differ by `tolerance` at most.

    The compared figures play no role in the choice of the pair. The pair after most steps is
    taken, since models that are hardly trained differ by chance, or the one whose mean accuracy is
    nearest to `accuracy`; of equals, the one with the smaller difference.

    Args:
        first: A run with the transfers of its validations.
        second: A run on the same dev sentences.
        accuracy: Preferred accuracy, 0 to 1; None takes the pair after most steps.
        thresholds: t1 to t4 of GM.
        tolerance: Largest difference of the accuracies.

    Raises:
        FileNotFoundError: The transfers of a validation are missing.
        ValueError: They are of different sentences.
    """
    pairs = product(range(len(first.points)), range(len(second.points)))
    accuracies = {(i, j): (first.points[i].accuracy, second.points[j].accuracy) for i, j in pairs}
    close = {pair: (x, y) for pair, (x, y) in accuracies.items() if abs(x - y) <= tolerance + 1e-9}
    if not close:
        return Comparison(first.name, second.name)

    def rank(pair: tuple[int, int]) -> tuple[float, float]:
        x, y = close[pair]
        if accuracy is None:
            return -(first.points[pair[0]].step + second.points[pair[1]].step), abs(x - y)
        return round(abs((x + y) / 2 - accuracy), 9), abs(x - y)

    i, j = min(close, key=rank)
    x, y = close[i, j]
    (one, before), (other, after) = first.transfers(i), second.transfers(j)
    if (one.sources, one.labels) != (other.sources, other.labels):
        raise ValueError(
            f"{first.folder} and {second.folder} have transferred different dev sentences. Compare "
            "runs of one setting."
        )
    differences = paired_transfer_bootstrap(before, after, thresholds)
    steps = first.points[i].step, second.points[j].step
    return Comparison(first.name, second.name, steps, (x, y), differences)


def plain_estimate(estimate: Estimate) -> dict[str, float | None]:
    """Return an estimate as JSON values, null if undefined."""
    return {name: finite_or_none(value) for name, value in estimate._asdict().items()}
