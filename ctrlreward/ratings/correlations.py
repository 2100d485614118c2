"""Correlation of scores with human ratings, with cluster bootstrap intervals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from ctrlreward.functional import reproducibility
from ctrlreward.functional.bootstrap import Estimate, Floats, bootstrap, cluster_numbers

STATISTICS = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ-b"}
_UNDEFINED = dict.fromkeys(STATISTICS, float("nan"))


class RatingCorrelations(NamedTuple):
    """Correlations, -1 to 1, of one score with one rating over `n` rows or systems.

    `failed` rows without a score or a rating are left out. At the level of systems, rows without a
    system are left out as well, but have not failed. `note` says why values or intervals are NaN.
    """

    n: int
    failed: int
    estimates: Mapping[str, Estimate]
    note: str


def correlate(x: Floats, y: Floats) -> dict[str, float]:
    """Return the `correlate` of `functional`, and Kendall's τ-b, of the pairs of shape (n,)."""
    pearson, spearman, n = reproducibility.correlate(x, y)
    if np.isnan(pearson):
        return _UNDEFINED
    valid = np.isfinite(x) & np.isfinite(y) if n < len(x) else slice(None)
    kendall = stats.kendalltau(x[valid], y[valid], method="asymptotic").statistic
    return {"pearson": pearson, "spearman": spearman, "kendall": float(kendall)}


def rating_correlations(
    scores: npt.ArrayLike,
    ratings: npt.ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    systems: Sequence[str | None] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> RatingCorrelations:
    """Correlate scores with ratings over rows, or over the means of systems, with intervals.

    The bootstrap draws clusters of rows, since completions of one prefix are alike. Systems are
    fixed, and means that differ only by rounding are ties. A draw that lacks a system, or in which
    a side is constant, is left out.

    Args:
        scores: Shape (n,); NaN for a failed sample, whose row is left out.
        ratings: Shape (n,); NaN for a row without a rating.
        clusters: Cluster of each row, shape (n,); None makes each row its own.
        systems: System that wrote each row, shape (n,), for the level of systems; None leaves a
            row out.
        resamples: Number of draws, by `seed`.
        seed: The same one gives the same intervals.
    """
    x, y = np.asarray(scores, np.float64), np.asarray(ratings, np.float64)
    failed = np.isnan(x) | np.isnan(y)
    if systems is None:
        read = np.ones(len(x), dtype=bool)
    else:
        read = np.array([system is not None for system in systems], dtype=bool)
    rows = np.flatnonzero(read & ~failed).tolist()
    x, y = x[rows], y[rows]
    members = cluster_numbers([i if clusters is None else clusters[i] for i in rows])
    places = cluster_numbers([i if systems is None else systems[i] for i in rows])
    n, unit = len(set(places.tolist())), "row" if systems is None else "system"

    def correlated(weights: Floats) -> dict[str, float]:
        """Correlate the rows as often as drawn, or the means of the systems, NaN without a row."""
        if systems is None:
            drawn = weights.astype(np.int64)
            return correlate(np.repeat(x, drawn), np.repeat(y, drawn))
        sizes = np.bincount(places, weights, n)
        if not sizes.all():
            return _UNDEFINED
        means = [np.bincount(places, weights * side, n) / sizes for side in (x, y)]
        return correlate(*(np.array([float(f"{mean:.12g}") for mean in side]) for side in means))

    def statistics(draws: Floats) -> dict[str, Floats]:
        found = [correlated(weights) for weights in draws]
        return {name: np.array([each[name] for each in found]) for name in STATISTICS}

    values = correlated(np.ones(len(rows)))
    note = ""
    if np.isnan(values["pearson"]):
        note = f"a correlation takes 3 {unit}s that differ in score and rating, got {n}"
    elif systems is not None and len({*zip(members.tolist(), places.tolist(), strict=True)}) == n:
        note = "the rows of each system belong to one cluster: no intervals"
    elif not members.any():
        note = "all rows belong to one cluster: no intervals"
    if note:
        estimates = {name: Estimate(value, np.nan, np.nan) for name, value in values.items()}
    else:
        estimates = bootstrap(statistics, members, 0.95, resamples, seed)
        if np.isnan(estimates["pearson"].low):
            note = "no draw has a correlation: no intervals"
    return RatingCorrelations(n, int((read & failed).sum()), estimates, note)
