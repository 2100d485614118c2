"""Means of scores, and how sure a difference between them is."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Interval(NamedTuple):
    """A difference of means with its confidence interval."""

    difference: float
    low: float
    high: float


def valid_mean(values: Floats) -> float:
    """The mean of the values that are not NaN, shape (n,); NaN if none is."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if valid.size else float("nan")


def paired_bootstrap(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    clusters: Sequence[Hashable],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """How much higher the mean of `after` is than that of `before`, by the cluster bootstrap.

    Texts written on from the same prefix are alike, so not texts but whole clusters (prefixes)
    are drawn with replacement, as many as there are, the same for both sides. The two means of a
    draw are taken over all rows of its clusters; the interval is the percentile interval of
    their difference (Efron and Tibshirani, 1993, ch. 13).

    Args:
        before: Scores, shape (n,). NaN, a sample that failed, is left out of its mean.
        after: Scores, shape (n,), of rows with the same clusters as those of `before`.
        clusters: What each row belongs to, shape (n,), such as its prefix.
        confidence: Share of the draws inside the interval, in (0, 1).
        resamples: How many draws.
        seed: The same seed gives the same interval.

    Returns:
        `difference`, mean(after) - mean(before), and the interval's ends.

    Raises:
        ValueError: The lengths differ, a side holds no score or an infinite one, there are fewer
            than two clusters, or `confidence` or `resamples` is out of its range.
    """
    first = _scores("before", before, len(clusters))
    second = _scores("after", after, len(clusters))
    if not (0 < confidence < 1 and resamples > 0):
        raise ValueError(
            f"confidence = {confidence} and resamples = {resamples}: give a confidence between 0 "
            "and 1, and one resample or more"
        )
    places = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    if len(places) < 2:
        raise ValueError(f"all rows have the cluster {clusters[0]!r}: give two clusters or more")
    members = np.array([places[cluster] for cluster in clusters])
    # All that matters of a draw is how often it holds each cluster.
    chances = np.full(len(places), 1 / len(places))
    draws = np.random.default_rng(seed).multinomial(len(places), chances, size=resamples)
    drawn = _means(second, members, draws) - _means(first, members, draws)
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return Interval(float(np.nanmean(second) - np.nanmean(first)), float(low), float(high))


def _scores(name: str, scores: npt.ArrayLike, rows: int) -> Floats:
    array = np.asarray(scores, dtype=np.float64)
    if array.shape != (rows,):
        raise ValueError(f"{name} has the shape {array.shape} and clusters {rows} items")
    if np.isnan(array).all() or np.isinf(array).any():
        raise ValueError(f"{name} holds no score or an infinite one: give numbers, NaN for failed")
    return array


def _means(scores: Floats, members: Ints, draws: Ints) -> Floats:
    """Mean score of each draw, shape (resamples,); NaN where its clusters hold no score."""
    scored = ~np.isnan(scores)
    sums = np.bincount(members, weights=np.where(scored, scores, 0.0))
    with np.errstate(invalid="ignore"):
        return np.asarray(draws @ sums / (draws @ np.bincount(members, weights=scored)))
