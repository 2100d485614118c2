"""Cluster bootstrap: draws of whole clusters, and means of all draws at once.

A draw is stored as the number of times that it contains each cluster, which is all that matters
for most statistics: each is computed from weighted rows instead of resampled ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


def _means(scores: Floats, members: Ints, draws: Ints) -> Floats:
    """Return the mean score of each draw, shape (draws,); NaN if its clusters have no score."""
    scored = ~np.isnan(scores)
    sums = np.bincount(members, weights=np.where(scored, scores, 0.0))
    with np.errstate(invalid="ignore"):
        return np.asarray(draws @ sums / (draws @ np.bincount(members, weights=scored)))
