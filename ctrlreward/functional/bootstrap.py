"""Cluster bootstrap: draws of whole clusters, and statistics of weighted rows.

A draw is stored as the number of times that it contains each cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Approximate size of a working array, in numbers. Larger problems are done in pieces.
_PIECE = 2_000_000


class Estimate(NamedTuple):
    """A statistic and its confidence interval; NaN where undefined."""

    value: float
    low: float
    high: float


def paired_bootstrap(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    clusters: Sequence[Hashable],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Return the difference mean(after) - mean(before) with its cluster bootstrap interval.

    Whole clusters (prefixes) are drawn with replacement, as many as the data have, and the same
    ones for both sides. The interval is the percentile interval of the difference (Efron and
    Tibshirani, 1993, ch. 13), infinite if all draws are alike: `unless_alike`.

    Args:
        before: Scores, shape (n,). NaN marks a failed sample, which its mean leaves out.
        after: Scores, shape (n,), of rows with the same clusters as `before`.
        clusters: Cluster of each row, for example its prefix, shape (n,).
        confidence: Share of the draws inside the interval, in (0, 1).
        resamples: Number of draws.
        seed: Random seed; the same seed gives the same interval.

    Examples:
        >>> paired_bootstrap([0, 1, 2, 3], [1, 2, 3, 5], ["soup", "soup", "dog", "dog"])
        Estimate(value=1.25, low=1.0, high=1.5)
    """
    sides, members = clustered_sides(before, after, clusters)
    # Sums and counts of each cluster replace its rows.
    sums = [np.bincount(members, weights=np.nan_to_num(side)) for side in sides]
    counts = [np.bincount(members, weights=~np.isnan(side)) for side in sides]

    def gain(weights: Floats) -> Mapping[str, Floats]:
        with np.errstate(invalid="ignore"):
            first, second = (weights @ s / (weights @ c) for s, c in zip(sums, counts, strict=True))
        return {"gain": second - first}

    members = np.arange(len(sums[0]))
    return unless_alike(bootstrap(gain, members, confidence, resamples, seed)["gain"])


def unless_alike(estimate: Estimate) -> Estimate:
    """Return an infinite interval if all draws are alike, which says nothing of other clusters."""
    if not math.isclose(estimate.low, estimate.high, rel_tol=1e-9, abs_tol=1e-12):
        return estimate
    return Estimate(estimate.value, -math.inf, math.inf)


def clustered_sides(
    before: npt.ArrayLike, after: npt.ArrayLike, clusters: Sequence[Hashable]
) -> tuple[list[Floats], Ints]:
    """Return the scores of both sides, and the cluster of each row, numbered from 0, shape (n,)."""
    sides = []
    for name, scores in (("before", before), ("after", after)):
        side = np.asarray(scores, dtype=np.float64)
        if side.shape != (len(clusters),):
            raise ValueError(
                f"{name} must have one score per row, got shape {side.shape} for {len(clusters)} "
                "clusters"
            )
        if np.isnan(side).all() or np.isinf(side).any():
            raise ValueError(f"{name} must have finite scores, or NaN for some failed samples")
        sides.append(side)
    members = cluster_numbers(clusters)
    if not members.any():
        raise ValueError(f"clusters must be two or more, but all rows have {clusters[0]!r}")
    return sides, members


def cluster_numbers(clusters: Sequence[Hashable]) -> Ints:
    """Return the cluster of each row, numbered from 0 as they first appear, shape (n,)."""
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return np.array([numbers[cluster] for cluster in clusters], dtype=np.int64)


def bootstrap(
    statistics: Callable[[Floats], Mapping[str, Floats]],
    members: Ints,
    confidence: float,
    resamples: int,
    seed: int,
) -> dict[str, Estimate]:
    """Return statistics of weighted rows with the percentile intervals of cluster draws, by name.

    `statistics` maps weights of shape (draws, n) to statistics by name, each of shape (draws,), and
    `members` is the cluster of each row, numbered from 0. The others are as in `paired_bootstrap`.
    All NaN if the statistic of the data is NaN; NaN draws are left out, and the interval is NaN if
    none remains.

    Examples:
        >>> values = np.array([1.0, 1.0, 3.0])
        >>> bootstrap(lambda w: {"sum": w @ values}, np.array([0, 0, 1]), 0.95, 100, seed=0)
        {'sum': Estimate(value=5.0, low=4.0, high=6.0)}
    """
    if not (0 < confidence < 1 and resamples > 0):
        raise ValueError(
            f"confidence must be between 0 and 1 and resamples 1 or more, got {confidence} and "
            f"{resamples}"
        )
    clusters = int(members.max()) + 1
    chances = np.full(clusters, 1 / clusters)
    draws = np.random.default_rng(seed).multinomial(clusters, chances, size=resamples)
    rows = max(1, _PIECE // len(members))
    blocks = (draws[start : start + rows, members] for start in range(0, resamples, rows))
    drawn = [statistics(block.astype(np.float64)) for block in blocks]
    tail = (1 - confidence) / 2
    estimates = {}
    for name, (value,) in statistics(np.ones((1, len(members)))).items():
        low = high = np.nan
        if not np.isnan(value):
            values = np.concatenate([block[name] for block in drawn])
            values = values[~np.isnan(values)]
            if len(values):
                low, high = np.quantile(values, [tail, 1 - tail])
        estimates[name] = Estimate(float(value), float(low), float(high))
    return estimates
