"""Cluster bootstrap: draws of whole clusters, and means and correlations of all draws at once.

A draw is stored as the number of times that it contains each cluster, which is all that matters
for the statistics below: each is computed from weighted rows instead of resampled ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Approximate size of a working array, in numbers. Larger problems are done in pieces.
_PIECE = 2_000_000


class Estimate(NamedTuple):
    """A statistic and its confidence interval; NaN where undefined.

    Attributes:
        value: The statistic of the data.
        low: Lower end of the interval.
        high: Upper end of the interval.

    Examples:
        >>> Estimate(value=0.5, low=0.25, high=0.75).low > 0
        True
    """

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

    Completions of one prefix are alike, so whole clusters (prefixes) are drawn with replacement,
    as many as the data have, and the same ones for both sides. Both means of a draw are taken
    over all rows of its clusters. The interval is the percentile interval of the difference
    (Efron and Tibshirani, 1993, ch. 13).

    Args:
        before: Scores, shape (n,). NaN marks a failed sample, which its mean leaves out.
        after: Scores, shape (n,), of rows with the same clusters as those of `before`.
        clusters: Cluster of each row, for example its prefix, shape (n,).
        confidence: Share of the draws inside the interval, in (0, 1).
        resamples: Number of draws.
        seed: Random seed; the same seed gives the same interval.

    Raises:
        ValueError: The lengths differ, a side has no valid score or an infinite one, there are
            fewer than two clusters, or `confidence` or `resamples` is out of range.

    Examples:
        >>> prefixes = ["The food", "The food", "A dog", "A dog"]
        >>> paired_bootstrap([0, 1, 2, 3], [1, 2, 3, 4], prefixes)
        Estimate(value=1.0, low=1.0, high=1.0)

        Every score rises by 1, so the difference is 1 in every draw.
    """
    first = valid_scores("before", before, len(clusters))
    second = valid_scores("after", after, len(clusters))
    members, draws = clustered_draws(clusters, confidence, resamples, seed)
    differences = _means(second, members, draws) - _means(first, members, draws)
    value = float(np.nanmean(second) - np.nanmean(first))
    return percentile_interval(value, differences, confidence)


def valid_scores(name: str, scores: npt.ArrayLike, rows: int) -> Floats:
    """Return scores as an array of shape (rows,), NaN for failed samples.

    Args:
        name: Name of the argument, for the error.
        scores: One score per row.
        rows: Number of rows.

    Raises:
        ValueError: The length differs, no score is valid, or one is infinite.

    Examples:
        >>> valid_scores("before", [1, float("nan")], rows=2)
        array([ 1., nan])
    """
    array = np.asarray(scores, dtype=np.float64)
    if array.shape != (rows,):
        raise ValueError(
            f"{name} has shape {array.shape} and clusters has {rows} items: give one of each "
            "per row"
        )
    if np.isnan(array).all() or np.isinf(array).any():
        raise ValueError(
            f"{name} has no valid score or an infinite one: give numbers, NaN for failed samples"
        )
    return array


def clustered_draws(
    clusters: Sequence[Hashable], confidence: float, resamples: int, seed: int
) -> tuple[Ints, Ints]:
    """Return the number of each row's cluster, and draws of as many clusters as there are.

    Returns:
        Cluster of each row, shape (n,), numbered by first occurrence, and how often each draw
        contains each cluster, shape (resamples, clusters).

    Raises:
        ValueError: There are fewer than two clusters, or an option is out of range.

    Examples:
        >>> members, draws = clustered_draws(["soup", "dog", "soup"], 0.95, resamples=4, seed=0)
        >>> members, draws.shape
        (array([0, 1, 0]), (4, 2))
    """
    check_options(confidence, resamples)
    places = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    if len(places) < 2:
        raise ValueError(f"all rows have cluster {clusters[0]!r}: give two or more clusters")
    members = np.array([places[cluster] for cluster in clusters])
    return members, draw_clusters(len(places), resamples, seed)


def percentile_interval(value: float, draws: Floats, confidence: float) -> Estimate:
    """Return a statistic with the percentile interval of its draws; NaN draws are left out.

    Args:
        value: The statistic of the data.
        draws: The statistic of each draw, shape (resamples,).
        confidence: Share of the draws inside the interval, in (0, 1).

    Examples:
        >>> percentile_interval(0.5, np.array([0.0, 0.25, 0.5, 0.75, 1.0]), confidence=0.5)
        Estimate(value=0.5, low=0.25, high=0.75)
    """
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(draws, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def check_options(confidence: float, resamples: int) -> None:
    """Raise a ValueError unless 0 < confidence < 1 and resamples ≥ 1.

    Examples:
        >>> check_options(confidence=95, resamples=1000)
        Traceback (most recent call last):
        ValueError: confidence = 95 and resamples = 1000: give a confidence between 0 and 1...
    """
    if not (0 < confidence < 1 and resamples > 0):
        raise ValueError(
            f"confidence = {confidence} and resamples = {resamples}: give a confidence between 0 "
            "and 1, and 1 or more resamples"
        )


def draw_clusters(clusters: int, resamples: int, seed: int) -> Ints:
    """Return how often each draw contains each cluster, shape (resamples, clusters).

    Examples:
        >>> draw_clusters(3, resamples=4, seed=0).sum(axis=1)
        array([3, 3, 3, 3])
    """
    chances = np.full(clusters, 1 / clusters)
    return np.random.default_rng(seed).multinomial(clusters, chances, size=resamples)


def row_weights(draws: Ints, members: Ints) -> Iterator[Floats]:
    """Yield how often each draw contains each row, a block of draws at a time.

    Args:
        draws: Number of times that a draw contains a cluster, shape (draws, clusters).
        members: Cluster of each row, shape (n,).

    Yields:
        Shape (block of draws, n).

    Examples:
        >>> next(row_weights(draws=np.array([[2, 0]]), members=np.array([0, 1, 0])))
        array([[2., 0., 2.]])
    """
    size = max(1, _PIECE // len(members))
    for start in range(0, len(draws), size):
        yield draws[start : start + size, members].astype(np.float64)


def weighted_pearson_and_spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return Pearson's r and Spearman's ρ of each draw.

    Args:
        x: One side, shape (n,).
        y: The other side, shape (n,).
        weights: How often each draw contains each row, shape (draws, n).

    Returns:
        Shape (draws, 2), NaN where a side is constant within a draw.

    Examples:
        >>> x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
        >>> weighted_pearson_and_spearman(x, y, weights=np.array([[1.0, 1, 1, 1], [1, 1, 0, 0]]))
        array([[0.8, 0.8],
               [1. , 1. ]])
    """
    pearson = _pearson(x[None], y[None], weights)
    spearman = _pearson(_ranks(x, weights), _ranks(y, weights), weights)
    return np.stack([pearson, spearman], axis=1)


def weighted_kendall(x: Floats, y: Floats, members: Ints, draws: Ints) -> Floats:
    """Return Kendall's τ-b of each draw, shape (draws,).

    With d_e the number of times that a draw contains cluster e, and c(i) the cluster of row i,
    the draw has Σ d_c(i) d_e K_ie more concordant than discordant pairs, summed over rows i and
    clusters e, where K_ie sums sgn(x_i - x_j) · sgn(y_i - y_j) over the rows j of e. The pairs
    not tied in x, or in y, are counted in the same way.

    Args:
        x: One side, shape (n,).
        y: The other side, shape (n,).
        members: Cluster of each row, shape (n,).
        draws: Number of times that a draw contains a cluster, shape (draws, clusters).

    Examples:
        >>> x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
        >>> draws = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])  # 5 of 6 pairs concordant, then 1 of 1
        >>> weighted_kendall(x, y, members=np.arange(4), draws=draws).round(3)
        array([0.667, 1.   ])
    """
    order = np.argsort(members, kind="stable")
    x, y, members = x[order], y[order], members[order]
    starts = np.searchsorted(members, np.arange(draws.shape[1]))
    counts = draws.astype(np.float32)  # sums of pairs stay below 2^24, exact in float32
    sums = np.zeros((3, len(draws)))
    step = max(1, _PIECE // len(x))
    for first in range(0, len(x), step):
        rows = slice(first, first + step)
        signs_x, signs_y = (np.sign(side[rows, None] - side).astype(np.float32) for side in (x, y))
        for total, pairs in zip(
            sums, (signs_x * signs_y, np.abs(signs_x), np.abs(signs_y)), strict=True
        ):
            by_clusters = np.add.reduceat(pairs, starts, axis=1)
            total += (counts @ by_clusters.T * draws[:, members[rows]]).sum(
                axis=1, dtype=np.float64
            )
    with np.errstate(invalid="ignore"):
        return np.asarray(sums[0] / np.sqrt(sums[1] * sums[2]))


def rowwise_correlations(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Return Pearson's r, Spearman's ρ and Kendall's τ-b of each row of x with that row of y.

    Args:
        x: Shape (draws, systems).
        y: Shape (draws, systems).

    Returns:
        Three arrays of shape (draws,), NaN where a row is constant.

    Examples:
        >>> x, y = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[1.0, 3.0, 2.0, 4.0]])
        >>> [float(values[0].round(3)) for values in rowwise_correlations(x, y)]
        [0.8, 0.8, 0.667]
    """
    if not len(x):
        return (np.empty(0),) * 3
    ones = np.ones_like(x)
    pearson = _pearson(x, y, ones)
    spearman = _pearson(stats.rankdata(x, axis=1), stats.rankdata(y, axis=1), ones)
    concordance, pairs_x, pairs_y = np.zeros((3, len(x)))
    for place in range(x.shape[1]):
        signs_x, signs_y = (np.sign(side - side[:, place, None]) for side in (x, y))
        concordance += (signs_x * signs_y).sum(axis=1)
        pairs_x += np.abs(signs_x).sum(axis=1)
        pairs_y += np.abs(signs_y).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return pearson, spearman, concordance / np.sqrt(pairs_x * pairs_y)


def _means(scores: Floats, members: Ints, draws: Ints) -> Floats:
    """Return the mean score of each draw, shape (draws,); NaN if its clusters have no score."""
    scored = ~np.isnan(scores)
    sums = np.bincount(members, weights=np.where(scored, scores, 0.0))
    with np.errstate(invalid="ignore"):
        return np.asarray(draws @ sums / (draws @ np.bincount(members, weights=scored)))


def _pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return weighted correlations along the rows of arrays that broadcast to (draws, n)."""
    total = weights.sum(axis=1, keepdims=True)
    from_x, from_y = (s - (weights * s).sum(axis=1, keepdims=True) / total for s in (x, y))
    product = (weights * from_x * from_y).sum(axis=1)
    deviations = 1.0
    for side, centred in ((x, from_x), (y, from_y)):
        deviation = np.sqrt((weights * np.square(centred)).sum(axis=1))
        # A constant side deviates from its mean by rounding alone.
        deviation[deviation <= 1e-12 * np.abs(side).max(axis=1) * total[:, 0]] = np.nan
        deviations = deviations * deviation
    return np.asarray(product / deviations)


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Return the mean rank of each row among the weighted rows of each draw, shape (draws, n)."""
    distinct, places = np.unique(values, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(distinct)))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    return (counts.cumsum(axis=1) - (counts - 1) / 2)[:, places]
