"""How well scores agree with human ratings: three correlations, each with an interval."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from ctrlreward.functional.bootstrap_correlation import (
    blocks,
    rowwise,
    weighted_kendall,
    weighted_pearson_and_spearman,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Estimate(NamedTuple):
    """A correlation, -1 to 1, with the ends of its interval; NaN where there is none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Correlations:
    """How one score agrees with one rating.

    Attributes:
        n: What was correlated: rows, or systems.
        failed: Rows that were left out, without a score or without a rating.
        pearson: Pearson's r.
        spearman: Spearman's ρ.
        kendall: Kendall's τ-b.
        note: Why a value or an interval is NaN; empty where nothing is.
    """

    n: int
    failed: int
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate
    note: str = ""


def sample_correlations(
    scores: npt.ArrayLike,
    ratings: npt.ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Correlations:
    """Correlations over all rows, with percentile intervals of the cluster bootstrap.

    Rows of one cluster (outputs for one prefix, or about one document) are alike, so whole
    clusters are drawn with replacement, as many as there are (see `paired_bootstrap`). With few
    clusters the intervals come out somewhat narrow. The time for the intervals grows with the
    square of the number of rows: a second for 3,000, half a minute for 10,000 of as many clusters.

    Args:
        scores: Shape (n,). NaN, a sample that failed, leaves its row out.
        ratings: Shape (n,); NaN leaves the row out.
        clusters: What each row belongs to, shape (n,); None for each row its own.
        confidence: Share of the draws inside the intervals, in (0, 1).
        resamples: How many draws.
        seed: The same seed gives the same intervals.

    Returns:
        The correlations over rows. NaN, with a note that says why, where fewer than three rows
        are left or one side is constant, and for the interval where there is a single cluster or
        no draw has a correlation.

    Raises:
        ValueError: The lengths differ, a value is infinite, or `confidence` or `resamples` is
            out of its range.
    """
    _check(confidence, resamples)
    x, y = _pair(scores, ratings)
    kept = ~(np.isnan(x) | np.isnan(y))
    members = _codes("clusters", range(len(x)) if clusters is None else clusters, kept)
    x, y, failed = x[kept], y[kept], int((~kept).sum())
    note = _degenerate(x, y, "row")
    if note:
        return _undefined(len(x), failed, note)
    if members.max() == 0:
        reason = "all rows are of one cluster"
        return _correlations(x, y, failed, _NO_DRAWS, confidence, reason)
    draws = _draws(members, resamples, seed)
    weights = blocks(draws, members)
    moments = np.concatenate([weighted_pearson_and_spearman(x, y, block) for block in weights])
    drawn = (*moments.T, weighted_kendall(x, y, members, draws))
    return _correlations(x, y, failed, drawn, confidence, "in no draw do both sides vary")


def system_correlations(
    scores: npt.ArrayLike,
    ratings: npt.ArrayLike,
    systems: Sequence[Hashable | None],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Correlations:
    """Correlations over the systems' means, with percentile intervals of the cluster bootstrap.

    The systems stay the same and whole clusters of rows (inputs) are drawn with replacement, so
    an interval says what other inputs would have given for these systems, not what other systems
    would have. Draws in which a system has no row, or one side is constant, are left out. Means
    that differ by no more than their rounding are ties.

    Args:
        scores: Shape (n,). NaN, a sample that failed, leaves its row out.
        ratings: Shape (n,); NaN leaves the row out.
        systems: Which system wrote each row, shape (n,); None leaves the row out.
        clusters: What each row belongs to, shape (n,), best the input that all systems were
            given; None for each row its own.
        confidence: Share of the draws inside the intervals, in (0, 1).
        resamples: How many draws.
        seed: The same seed gives the same intervals.

    Returns:
        The correlations over systems; `failed` still counts rows. NaN, with a note that says
        why, where there are fewer than three systems or one side is constant, and for the interval
        where the rows of each system are of one cluster or no draw has a correlation.

    Raises:
        ValueError: The lengths differ, a value is infinite, or `confidence` or `resamples` is
            out of its range.
    """
    _check(confidence, resamples)
    x, y = _pair(scores, ratings)
    kept = ~(np.isnan(x) | np.isnan(y))
    kept &= np.array([system is not None for system in systems], dtype=bool)
    members = _codes("clusters", range(len(x)) if clusters is None else clusters, kept)
    places = _codes("systems", systems, kept)
    x, y, failed = x[kept], y[kept], int((~kept).sum())
    once = np.ones((1, members.max(initial=-1) + 1), dtype=np.int64)
    (means_x,), (means_y,) = (_system_means(side, members, places, once) for side in (x, y))
    note = _degenerate(means_x, means_y, "system")
    if note:
        return _undefined(len(means_x), failed, note)
    if len(set(zip(places.tolist(), members.tolist(), strict=True))) == len(means_x):
        reason = "the rows of each system are of one cluster"
        return _correlations(means_x, means_y, failed, _NO_DRAWS, confidence, reason)
    draws = _draws(members, resamples, seed)
    drawn_x, drawn_y = (_system_means(side, members, places, draws) for side in (x, y))
    present = ~np.isnan(drawn_x).any(axis=1)
    drawn = rowwise(drawn_x[present], drawn_y[present])
    reason = "in no draw do all systems have rows and both sides vary"
    return _correlations(means_x, means_y, failed, drawn, confidence, reason)


# What is asked for


def _check(confidence: float, resamples: int) -> None:
    if not (0 < confidence < 1 and resamples > 0):
        raise ValueError(
            f"confidence = {confidence} and resamples = {resamples}: give a confidence between 0 "
            "and 1, and one resample or more"
        )


def _pair(scores: npt.ArrayLike, ratings: npt.ArrayLike) -> tuple[Floats, Floats]:
    x = np.asarray(scores, dtype=np.float64)
    y = np.asarray(ratings, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"scores has the shape {x.shape} and ratings {y.shape}: give one of each per row"
        )
    for name, side in (("scores", x), ("ratings", y)):
        if np.isinf(side).any():
            place = int(np.flatnonzero(np.isinf(side))[0])
            raise ValueError(f"{name}[{place}] is infinite: give numbers, NaN for failed")
    return x, y


def _codes(name: str, items: Sequence[Hashable], kept: npt.NDArray[np.bool_]) -> Ints:
    """Each kept row's item as a number from 0, in the order in which they first occur."""
    if len(items) != len(kept):
        raise ValueError(f"{name} has {len(items)} items for {len(kept)} rows: give one per row")
    chosen = [item for item, keep in zip(items, kept.tolist(), strict=True) if keep]
    places = {item: place for place, item in enumerate(dict.fromkeys(chosen))}
    return np.array([places[item] for item in chosen], dtype=np.int64)


def _degenerate(x: Floats, y: Floats, unit: str) -> str:
    """Why these have no correlation; empty where they have."""
    if len(x) < 3:
        return f"of 3 or more {unit}s that a correlation takes, there are {len(x)}"
    for name, side in (("score", x), ("rating", y)):
        if side.min() == side.max():
            return f"every {unit} has the {name} {side[0]:g}"
    return ""


def _undefined(n: int, failed: int, note: str) -> Correlations:
    nothing = Estimate(np.nan, np.nan, np.nan)
    return Correlations(n, failed, nothing, nothing, nothing, note)


def _correlations(
    x: Floats, y: Floats, failed: int, drawn: Sequence[Floats], confidence: float, reason: str
) -> Correlations:
    """The values of x and y themselves, with the percentile intervals of what was drawn.

    `reason` says why, where no draw has a value.
    """
    measures: tuple[Callable[..., Any], ...] = (stats.pearsonr, stats.spearmanr, stats.kendalltau)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    estimates = []
    for place, measure in enumerate(measures):
        defined = drawn[place][~np.isnan(drawn[place])]
        ends = np.quantile(defined, tails) if len(defined) else (np.nan, np.nan)
        estimates.append(Estimate(float(measure(x, y).statistic), *map(float, ends)))
    pearson, spearman, kendall = estimates
    note = "" if all(np.isfinite(e.low) for e in estimates) else f"{reason}: no intervals"
    return Correlations(len(x), failed, pearson, spearman, kendall, note)


# Draws: all that matters of one is how often it holds each cluster

_NO_DRAWS = (np.empty(0),) * 3


def _draws(members: Ints, resamples: int, seed: int) -> Ints:
    """How often each draw holds each cluster, shape (resamples, clusters)."""
    count = int(members.max()) + 1
    chances = np.full(count, 1 / count)
    return np.random.default_rng(seed).multinomial(count, chances, size=resamples)


def _system_means(values: Floats, members: Ints, places: Ints, draws: Ints) -> Floats:
    """Mean of each system in each draw, shape (draws, systems); NaN where it has no row.

    Rounded to 12 digits of the largest value, so that equal means of different sums are equal.
    """
    shape = (draws.shape[1], places.max(initial=-1) + 1)
    cells = members * shape[1] + places
    sums = np.bincount(cells, values, minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    scale = np.abs(values).max(initial=0) or 1.0
    with np.errstate(invalid="ignore"):
        return np.asarray(scale * np.round((draws @ sums) / (draws @ counts) / scale, 12))
