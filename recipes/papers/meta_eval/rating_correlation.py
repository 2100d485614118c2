"""Correlation of scores with human ratings: three coefficients, each with an interval."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from ctrlreward.functional.bootstrap import Estimate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Pairs of rows that are held at once.
_PIECE = 2_000_000

_NO_DRAWS = (np.empty(0),) * 3

_MEASURES: Mapping[str, Callable[..., Any]] = {
    "pearson": stats.pearsonr,
    "spearman": stats.spearmanr,
    "kendall": stats.kendalltau,
}


@dataclass(frozen=True)
class RatingCorrelations:
    """Correlations of one score with one human rating, each -1 to 1.

    Attributes:
        n: Number of points correlated: rows or systems.
        failed: Number of rows left out for a missing score or rating.
        pearson: Pearson's r.
        spearman: Spearman's ρ.
        kendall: Kendall's τ-b.
        note: Reason for a NaN value or interval, else empty.

    Examples:
        >>> sample_correlations([0.1, 0.2, None], [1, 2, 3]).note
        '2 rows: a correlation takes 3 or more'
    """

    n: int
    failed: int
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate
    note: str = ""


def correlate(scores: Floats, ratings: Floats) -> dict[str, float | None]:
    """Return Pearson's r, Spearman's ρ and Kendall's τ-b over the rows that have both values.

    None where fewer than three rows are left or a side is constant. `sample_correlations` adds
    intervals.

    Args:
        scores: Shape (n,); NaN leaves the row out.
        ratings: Shape (n,); NaN leaves the row out.

    Examples:
        >>> found = correlate(np.array([0.1, 0.2, 0.3, np.nan]), np.array([1.0, 3.0, 2.0, 1.0]))
        >>> round(found["pearson"], 3)  # of the first three rows
        0.5
    """
    kept = ~(np.isnan(scores) | np.isnan(ratings))
    x, y = scores[kept], ratings[kept]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return dict.fromkeys(_MEASURES)
    return {name: float(measure(x, y).statistic) for name, measure in _MEASURES.items()}


def sample_correlations(
    scores: npt.ArrayLike,
    ratings: npt.ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> RatingCorrelations:
    """Correlate scores with ratings over all rows, with cluster bootstrap intervals.

    Rows of one cluster (completions of one prefix, or texts about one document) are alike, so
    whole clusters are drawn with replacement, as in `paired_bootstrap`. Percentile intervals are
    somewhat too narrow for few clusters. Their cost grows with the square of the number of rows:
    a second for 3,000 rows, half a minute for 10,000 rows that are each their own cluster.

    Args:
        scores: Shape (n,). NaN marks a failed sample and leaves the row out.
        ratings: Shape (n,); NaN leaves the row out.
        clusters: Cluster of each row, shape (n,); None makes every row its own cluster.
        confidence: Share of the draws inside the intervals, in (0, 1).
        resamples: Number of draws.
        seed: Random seed; the same seed gives the same intervals.

    Returns:
        The correlations over rows. All are NaN, with a note, if fewer than three rows are left or
        a side is constant. Only the intervals are NaN if there is a single cluster or no draw has
        a correlation.

    Raises:
        ValueError: The lengths differ, a value is infinite, or `confidence` or `resamples` is
            out of range.

    Examples:
        >>> result = sample_correlations([0.1, 0.2, 0.3, 0.4], [1, 3, 2, 4], resamples=100)
        >>> round(result.pearson.value, 3), round(result.spearman.value, 3)
        (0.8, 0.8)
        >>> round(result.kendall.value, 3)  # 5 concordant pairs and 1 discordant, of 6
        0.667
    """
    check_options(confidence, resamples)
    x, y = _paired(scores, ratings)
    kept = ~(np.isnan(x) | np.isnan(y))
    members = _codes("clusters", range(len(x)) if clusters is None else clusters, kept)
    x, y, failed = x[kept], y[kept], int((~kept).sum())
    note = _degenerate(x, y, "row")
    if note:
        return _undefined(len(x), failed, note)
    if members.max() == 0:
        reason = "all rows belong to one cluster"
        return _with_intervals(x, y, failed, _NO_DRAWS, confidence, reason)
    draws = draw_clusters(int(members.max()) + 1, resamples, seed)
    blocks = row_weights(draws, members)
    moments = np.concatenate([weighted_pearson_and_spearman(x, y, block) for block in blocks])
    drawn = (*moments.T, weighted_kendall(x, y, members, draws))
    return _with_intervals(x, y, failed, drawn, confidence, "no draw varies on both sides")


def system_correlations(
    scores: npt.ArrayLike,
    ratings: npt.ArrayLike,
    systems: Sequence[Hashable | None],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> RatingCorrelations:
    """Correlate the systems' mean scores with their mean ratings, with bootstrap intervals.

    The systems are fixed and whole clusters of rows (inputs) are drawn with replacement. An
    interval therefore covers other inputs to the same systems, not other systems. Draws in which
    a system has no rows, or a side is constant, are left out. Means that differ only by rounding
    are ties.

    Args:
        scores: As in `sample_correlations`.
        ratings: As in `sample_correlations`.
        systems: System that wrote each row, shape (n,); None leaves the row out.
        clusters: Cluster of each row, ideally the input shared by all systems.
        confidence: As in `sample_correlations`.
        resamples: As in `sample_correlations`.
        seed: As in `sample_correlations`.

    Returns:
        The correlations over systems; `failed` still counts rows. All are NaN, with a note, if
        there are fewer than three systems or a side is constant. Only the intervals are NaN if
        the rows of each system belong to one cluster or no draw has a correlation.

    Raises:
        ValueError: As in `sample_correlations`.

    Examples:
        >>> systems = ["A", "A", "B", "B", "C", "C"]
        >>> result = system_correlations([1, 3, 2, 4, 3, 5], [5, 5, 4, 2, 1, 1], systems)
        >>> result.n, round(result.pearson.value, 3)  # means 2, 3, 4 and 5, 3, 1
        (3, -1.0)
    """
    check_options(confidence, resamples)
    x, y = _paired(scores, ratings)
    kept = ~(np.isnan(x) | np.isnan(y))
    kept &= np.array([system is not None for system in systems], dtype=bool)
    members = _codes("clusters", range(len(x)) if clusters is None else clusters, kept)
    places = _codes("systems", systems, kept)
    x, y, failed = x[kept], y[kept], int((~kept).sum())
    one_draw = np.ones((1, members.max(initial=-1) + 1), dtype=np.int64)
    (means_x,), (means_y,) = (_system_means(side, members, places, one_draw) for side in (x, y))
    note = _degenerate(means_x, means_y, "system")
    if note:
        return _undefined(len(means_x), failed, note)
    if len(set(zip(places.tolist(), members.tolist(), strict=True))) == len(means_x):
        reason = "the rows of each system belong to one cluster"
        return _with_intervals(means_x, means_y, failed, _NO_DRAWS, confidence, reason)
    draws = draw_clusters(int(members.max()) + 1, resamples, seed)
    drawn_x, drawn_y = (_system_means(side, members, places, draws) for side in (x, y))
    present = ~np.isnan(drawn_x).any(axis=1)
    drawn = rowwise_correlations(drawn_x[present], drawn_y[present])
    reason = "no draw has rows of every system and varies on both sides"
    return _with_intervals(means_x, means_y, failed, drawn, confidence, reason)


def check_options(confidence: float, resamples: int) -> None:
    """Raise a ValueError unless 0 < confidence < 1 and resamples ≥ 1.

    Examples:
        >>> check_options(confidence=0.95, resamples=1000)
    """
    if not (0 < confidence < 1 and resamples > 0):
        raise ValueError(
            f"confidence must be between 0 and 1 and resamples 1 or more, got {confidence} and "
            f"{resamples}"
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
    """Yield how often each draw contains each row, in blocks of shape (draws of the block, n).

    `draws` is how often a draw contains a cluster, shape (draws, clusters), and `members` has the
    cluster of each row, shape (n,).

    Examples:
        >>> next(row_weights(draws=np.array([[2, 0]]), members=np.array([0, 1, 0])))
        array([[2., 0., 2.]])
    """
    size = max(1, _PIECE // len(members))
    for start in range(0, len(draws), size):
        yield draws[start : start + size, members].astype(np.float64)


def _paired(scores: npt.ArrayLike, ratings: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return both sides as float64, shape (n,) each; raise unless they pair up and are finite."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (scores, ratings))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"scores and ratings must have one item per row, got shapes {x.shape} and {y.shape}"
        )
    for name, side in (("scores", x), ("ratings", y)):
        if np.isinf(side).any():
            place = int(np.flatnonzero(np.isinf(side))[0])
            raise ValueError(f"{name}[{place}] is infinite, must be finite, NaN for failed samples")
    return x, y


def _codes(name: str, items: Sequence[Hashable], kept: npt.NDArray[np.bool_]) -> Ints:
    """Return an integer code for the item of each kept row, numbered from 0 by first occurrence."""
    if len(items) != len(kept):
        raise ValueError(
            f"{name} must have one item per row, got {len(items)} for {len(kept)} rows"
        )
    chosen = [item for item, keep in zip(items, kept.tolist(), strict=True) if keep]
    places = {item: place for place, item in enumerate(dict.fromkeys(chosen))}
    return np.array([places[item] for item in chosen], dtype=np.int64)


def _degenerate(x: Floats, y: Floats, unit: str) -> str:
    """Return the reason why the correlation of x and y is undefined; empty if it is defined."""
    if len(x) < 3:
        return f"{len(x)} {unit}s: a correlation takes 3 or more"
    for name, side in (("score", x), ("rating", y)):
        if side.min() == side.max():
            return f"every {unit} has the {name} {side[0]:g}"
    return ""


def _undefined(n: int, failed: int, note: str) -> RatingCorrelations:
    nothing = Estimate(np.nan, np.nan, np.nan)
    return RatingCorrelations(n, failed, nothing, nothing, nothing, note)


def _with_intervals(
    x: Floats, y: Floats, failed: int, drawn: Sequence[Floats], confidence: float, reason: str
) -> RatingCorrelations:
    """Return the correlations of x and y, (n,) each, with percentile intervals.

    `drawn` are Pearson's r, Spearman's ρ and Kendall's τ-b of the draws, (draws,) each; `reason`
    goes into the note if no draw has a value.
    """
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    estimates = []
    for values, measure in zip(drawn, _MEASURES.values(), strict=True):
        defined = values[~np.isnan(values)]
        ends = np.quantile(defined, tails) if len(defined) else (np.nan, np.nan)
        estimates.append(Estimate(float(measure(x, y).statistic), *map(float, ends)))
    pearson, spearman, kendall = estimates
    note = "" if all(np.isfinite(e.low) for e in estimates) else f"{reason}: no intervals"
    return RatingCorrelations(len(x), failed, pearson, spearman, kendall, note)


def _system_means(values: Floats, members: Ints, places: Ints, draws: Ints) -> Floats:
    """Return the mean of each system in each draw, shape (draws, systems); NaN without rows.

    Means are rounded to 12 digits of the largest value, so that means that differ only by the
    rounding of their sums are equal.
    """
    shape = (draws.shape[1], places.max(initial=-1) + 1)
    cells = members * shape[1] + places
    sums = np.bincount(cells, values, minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    scale = np.abs(values).max(initial=0) or 1.0
    with np.errstate(invalid="ignore"):
        return np.asarray(scale * np.round((draws @ sums) / (draws @ counts) / scale, 12))


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
        signs = (signs_x * signs_y, np.abs(signs_x), np.abs(signs_y))
        for total, pairs in zip(sums, signs, strict=True):
            products = counts @ np.add.reduceat(pairs, starts, axis=1).T * draws[:, members[rows]]
            total += products.sum(axis=1, dtype=np.float64)
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
