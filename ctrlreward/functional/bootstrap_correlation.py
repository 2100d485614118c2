"""Correlations of many bootstrap draws at once, each a weighting of the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Numbers in a working array: larger problems are done in pieces of about this size.
_PIECE = 2_000_000


def blocks(draws: Ints, members: Ints) -> Iterator[Floats]:
    """How often each draw holds each row, a few draws at a time."""
    size = max(1, _PIECE // len(members))
    for start in range(0, len(draws), size):
        yield draws[start : start + size, members].astype(np.float64)


def weighted_pearson_and_spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Both for each draw, shape (draws, 2), of rows that it holds `weights` (draws, n) times."""
    pearson = _pearson(x[None], y[None], weights)
    spearman = _pearson(_ranks(x, weights), _ranks(y, weights), weights)
    return np.stack([pearson, spearman], axis=1)


def weighted_kendall(x: Floats, y: Floats, members: Ints, draws: Ints) -> Floats:
    """τ-b of each draw, shape (draws,).

    Concordant minus discordant pairs of a draw, in which cluster e is d_e times, are
    Σ d_c(i) d_e K_ie over rows i and clusters e, where K_ie sums sgn(x_i - x_j) · sgn(y_i - y_j)
    over j in e. So are the pairs that are not tied in x, or in y.
    """
    order = np.argsort(members, kind="stable")
    x, y, members = x[order], y[order], members[order]
    starts = np.searchsorted(members, np.arange(draws.shape[1]))
    often = draws.astype(np.float32)  # sums of pairs stay below 2^24, exact in float32
    forms = np.zeros((3, len(draws)))
    step = max(1, _PIECE // len(x))
    for first in range(0, len(x), step):
        rows = slice(first, first + step)
        signs_x, signs_y = (np.sign(side[rows, None] - side).astype(np.float32) for side in (x, y))
        for form, pairs in zip(
            forms, (signs_x * signs_y, np.abs(signs_x), np.abs(signs_y)), strict=True
        ):
            by_clusters = np.add.reduceat(pairs, starts, axis=1)
            form += (often @ by_clusters.T * draws[:, members[rows]]).sum(axis=1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(forms[0] / np.sqrt(forms[1] * forms[2]))


def rowwise(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Pearson, Spearman and τ-b between equal rows of x and y, each of shape (draws, systems)."""
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
    """Weighted correlation along the rows of arrays that broadcast to (draws, n)."""
    total = weights.sum(axis=1, keepdims=True)
    from_x, from_y = (s - (weights * s).sum(axis=1, keepdims=True) / total for s in (x, y))
    product = (weights * from_x * from_y).sum(axis=1)
    deviations = 1.0
    for side, centred in ((x, from_x), (y, from_y)):
        deviation = np.sqrt((weights * np.square(centred)).sum(axis=1))
        # Of a constant side, the rounding of its mean is left.
        deviation[deviation <= 1e-12 * np.abs(side).max(axis=1) * total[:, 0]] = np.nan
        deviations = deviations * deviation
    return np.asarray(product / deviations)


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Mean rank of each row in each draw, shape (draws, n), as if it were there that often."""
    distinct, places = np.unique(values, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(distinct)))
    often = np.add.reduceat(weights[:, order], starts, axis=1)
    return (often.cumsum(axis=1) - (often - 1) / 2)[:, places]
