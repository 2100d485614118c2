"""Correlation of scores with human ratings, with cluster bootstrap intervals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from ctrlreward.functional.bootstrap import Estimate, Floats, bootstrap, cluster_numbers

STATISTICS = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ-b"}
_UNDEFINED = dict.fromkeys(STATISTICS, float("nan"))


class RatingCorrelations(NamedTuple):
    """Correlations of one score with one rating.

    Attributes:
        n: Number of points: rows or systems.
        failed: Number of rows without a score or a rating, which are left out. At the level of
            systems, rows without a system are left out as well, but have not failed.
        estimates: Value, -1 to 1, and 95 % interval by statistic; NaN if undefined.
        note: Why values or intervals are undefined, else empty.
    """

    n: int
    failed: int
    estimates: Mapping[str, Estimate]
    note: str


def correlate(x: Floats, y: Floats) -> dict[str, float]:
    """Return Pearson's r, Spearman's ρ and Kendall's τ-b of the pairs without NaN.

    All are NaN for fewer than three pairs and for a constant side. `x` and `y` have shape (n,).

    Examples:
        >>> x, y = np.array([0.1, 0.2, 0.3, 0.4, np.nan]), np.array([1.0, 3.0, 2.0, 4.0, 0.0])
        >>> [round(value, 3) for value in correlate(x, y).values()]  # 5 of 6 pairs are concordant
        [0.8, 0.8, 0.667]
    """
    valid = ~(np.isnan(x) | np.isnan(y))
    x, y = x[valid], y[valid]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return _UNDEFINED
    return {
        "pearson": float(np.corrcoef(x, y)[0, 1]),
        "spearman": float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1]),
        "kendall": float(stats.kendalltau(x, y, method="asymptotic").statistic),
    }


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
        resamples: Number of draws.
        seed: Random seed; the same one gives the same intervals.

    Examples:
        >>> found = rating_correlations([1, 3, 2, 4, 3, 5], [5, 5, 4, 2, 1, 1], systems="AABBCC")
        >>> found.n, round(found.estimates["pearson"].value, 3)  # means 2, 3, 4 and 5, 3, 1
        (3, -1.0)
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
