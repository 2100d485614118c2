"""Trends over the validations of a run (Table 1)."""

from __future__ import annotations

from ctrlreward.files import finite_or_none
from ctrlreward.recipes.papers.meta_eval.rating_correlation import sample_correlations
from ctrlreward.recipes.papers.textual_transfer.transfer_runs import TransferRun


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
