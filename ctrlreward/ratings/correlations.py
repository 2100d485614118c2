"""Correlation of scores with human ratings, with cluster bootstrap intervals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.bootstrap import Estimate, Floats, bootstrap, cluster_numbers

STATISTICS = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ-b"}
_PIECE = 2_000_000  # numbers of a working array
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
    """Return the correlations of the pairs of shape (n,) in which both are finite, by name."""
    valid = np.isfinite(x) & np.isfinite(y)
    found = weighted_correlations(x[valid], y[valid], np.ones((1, valid.sum())))
    return {name: float(value) for name, (value,) in found.items()}


def weighted_correlations(x: Floats, y: Floats, weights: Floats) -> dict[str, Floats]:
    """Return Pearson's r, Spearman's ρ and Kendall's τ-b of n finite pairs, each of shape (draws,).

    `weights` say how often each draw has each pair, shape (draws, n). NaN for fewer than three
    pairs (two points always lie on a line) and for a constant side. Time grows with draws · n².
    """
    ranks = np.empty((2, *weights.shape))
    pairs = np.zeros((3, len(weights)))  # in the same order less the others; that differ in x, in y
    drawn = weights.astype(np.float32)  # sums of signs are whole numbers, exact below 2**24
    for start in range(0, len(x), size := max(1, _PIECE // max(len(x), 1))):
        rows = slice(start, start + size)
        signs = [np.sign(side[rows, None] - side).astype(np.float32) for side in (x, y)]
        for rank, sign in zip(ranks, signs, strict=True):
            rank[:, rows] = drawn @ sign.T  # pairs below less pairs above: twice a midrank
        for count, sign in zip(pairs, (signs[0] * signs[1], *map(np.abs, signs)), strict=True):
            count += (weights[:, rows] * (drawn @ sign.T)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        found = _pearson(x, y, weights), _pearson(ranks[0], ranks[1], weights)
        kendall = pairs[0] / np.sqrt(pairs[1] * pairs[2])
    few = (weights.sum(axis=1) < 3) | ~pairs[1:].all(axis=0)
    values = np.where(few, np.nan, [*found, kendall])
    return dict(zip(STATISTICS, values, strict=True))


def _pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the weighted correlation of each draw, whose pairs are the last axis."""
    total = weights.sum(axis=1, keepdims=True)
    x, y = (side - (weights * side).sum(axis=1, keepdims=True) / total for side in (x, y))
    shared, own, other = ((weights * a * b).sum(axis=1) for a, b in ((x, y), (x, x), (y, y)))
    return (shared / np.sqrt(own * other)).clip(-1.0, 1.0)


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
    failed = ~(np.isfinite(x) & np.isfinite(y))
    if systems is None:
        read = np.ones(len(x), dtype=bool)
    else:
        read = np.array([system is not None for system in systems], dtype=bool)
    rows = np.flatnonzero(read & ~failed).tolist()
    x, y = x[rows], y[rows]
    members = cluster_numbers([i if clusters is None else clusters[i] for i in rows])
    places = cluster_numbers([i if systems is None else systems[i] for i in rows])
    n, unit = len(set(places.tolist())), "row" if systems is None else "system"

    def of_means(weights: Floats) -> dict[str, float]:
        """Correlate the means of the systems in a draw; NaN if it has no row of one."""
        sizes = np.bincount(places, weights, n)
        if not sizes.all():
            return _UNDEFINED
        means = [np.bincount(places, weights * side, n) / sizes for side in (x, y)]
        return correlate(*(np.array([float(f"{mean:.12g}") for mean in side]) for side in means))

    def statistics(draws: Floats) -> dict[str, Floats]:
        if systems is None:
            return weighted_correlations(x, y, draws)
        found = [of_means(weights) for weights in draws]
        return {name: np.array([each[name] for each in found]) for name in STATISTICS}

    values = {name: float(value) for name, (value,) in statistics(np.ones((1, len(x)))).items()}
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
