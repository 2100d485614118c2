"""Agreement of scores with pairwise preferences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.bootstrap import Estimate, Floats, Ints, bootstrap, cluster_numbers


class PairAccuracy(NamedTuple):
    """Share of pairs in which the chosen text has the higher score.

    Attributes:
        pairs: Number of pairs with both scores.
        higher: Share of these in which the chosen text scores higher, with its 95 % interval.
        ties: Share in which both score the same.
        failed: Number of pairs of which a text could not be scored.
    """

    pairs: int
    higher: Estimate
    ties: float
    failed: int


def pair_accuracy(
    chosen: npt.ArrayLike,
    rejected: npt.ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> PairAccuracy:
    """Return how often chosen texts score higher than rejected ones.

    `chosen` and `rejected` are scores of the texts of the same pairs, higher is better, NaN where
    scoring failed, shape (n,), and `clusters` such as prompts; None: each pair is its own. The
    interval is Wilson's if each pair is a cluster, or if all clusters have the same share, where n
    is the number of clusters; else of the bootstrap over clusters. A ValueError if lengths differ.

    Examples:
        >>> pair_accuracy([0.9, 0.8, 0.7, 0.1], [0.5, 0.5, 0.5, 0.5]).higher
        Estimate(value=0.75, low=0.30..., high=0.95...)
    """
    sides = np.asarray(chosen, np.float64), np.asarray(rejected, np.float64)
    names: list[Hashable] = list(range(len(sides[0])) if clusters is None else clusters)
    if not len(sides[0]) == len(sides[1]) == len(names):
        raise ValueError(
            f"chosen, rejected and clusters must have one item per pair, got {len(sides[0])}, "
            f"{len(sides[1])} and {len(names)}"
        )
    valid = np.isfinite(sides[0]) & np.isfinite(sides[1])
    wins = (sides[0] > sides[1])[valid].astype(np.float64)
    ties = (sides[0] == sides[1])[valid].astype(np.float64)
    failed = int((~valid).sum())
    if not len(wins):
        return PairAccuracy(0, Estimate(np.nan, np.nan, np.nan), np.nan, failed)
    members = cluster_numbers([name for name, kept in zip(names, valid, strict=True) if kept])
    higher = _share(wins, members, resamples, seed)
    return PairAccuracy(len(wins), higher, float(ties.mean()), failed)


def _share(rights: Floats, members: Ints, resamples: int, seed: int) -> Estimate:
    sums, counts = np.bincount(members, weights=rights), np.bincount(members)
    n, share = len(counts), float(rights.mean())
    # Draws of clusters that agree are all equal.
    if n < len(rights) and np.ptp(sums / counts) > 0:
        return bootstrap(
            lambda weights: {"": weights @ sums / (weights @ counts)},
            *(np.arange(n), 0.95, resamples, seed),
        )[""]
    from scipy.stats import binomtest  # takes half a second

    ends = binomtest(round(share * n), n).proportion_ci(method="wilson")
    return Estimate(share, float(ends.low), float(ends.high))
