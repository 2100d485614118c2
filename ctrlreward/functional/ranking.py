"""AUC: how well a score ranks texts of one label above the others, and its change in a run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.bootstrap import (
    Estimate,
    Floats,
    bootstrap,
    clustered_sides,
    unless_alike,
)

Bools = npt.NDArray[np.bool_]


def auc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Return the area under the ROC curve of a score as a classifier: 0 to 1, higher is better.

    It is the probability that a random positive row scores above a random negative one, where a tie
    counts half. NaN scores (failed samples) are left out; NaN without a valid score on both sides.
    Both arguments have shape (n,); other lengths raise a ValueError.

    Examples:
        >>> auc([0.9, 0.2, 0.2, 0.1], [True, True, False, False])  # 3.5 of 4 pairs
        0.875
    """
    values, wanted = np.asarray(scores, dtype=np.float64), _flags(positive, np.size(scores))
    return float(weighted_auc(values, wanted, np.ones((1, len(values))))[0])


def weighted_auc(scores: Floats, positive: Bools, weights: Floats) -> Floats:
    """Return the AUC of each draw, shape (draws,), in time n per draw after one sort.

    With w_i the number of times that a draw contains row i, `weights` of shape (draws, n):

        AUC = Σ_i w_i · (Σ_{j: s_j < s_i} w_j + ½ · Σ_{j: s_j = s_i} w_j) / (Σ_i w_i · Σ_j w_j)

    where i runs over the positive rows and j over the negative ones. NaN scores are left out; NaN
    for a draw without a valid score on both sides.
    """
    order = np.argsort(scores)  # NaN come last
    order = order[: np.count_nonzero(~np.isnan(scores))]
    if not order.size:
        return np.full(len(weights), np.nan)
    sorted_scores, wanted, counts = scores[order], positive[order], weights[:, order]
    starts = np.flatnonzero(np.diff(sorted_scores, prepend=np.nan))  # of each distinct score
    above, below = (
        np.add.reduceat(np.where(side, counts, 0.0), starts, axis=1) for side in (wanted, ~wanted)
    )
    won = (above * (below.cumsum(axis=1) - below / 2)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(won / (above.sum(axis=1) * below.sum(axis=1)))


def paired_auc_bootstrap(
    before: npt.ArrayLike,
    after: npt.ArrayLike,
    positive: npt.ArrayLike,
    clusters: Sequence[Hashable],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Return the difference AUC(after) - AUC(before) with its cluster bootstrap interval.

    `positive` is True for the rows that should score higher, shape (n,). The other arguments, the
    draws and the errors are as in `paired_bootstrap`. A draw without a positive or a negative row
    with a valid score is left out; NaN if the data have none.
    """
    (first, second), members = clustered_sides(before, after, clusters)
    wanted = _flags(positive, len(clusters))

    def gain(weights: Floats) -> Mapping[str, Floats]:
        risen = weighted_auc(second, wanted, weights) - weighted_auc(first, wanted, weights)
        return {"gain": risen}

    return unless_alike(bootstrap(gain, members, confidence, resamples, seed)["gain"])


def _flags(positive: npt.ArrayLike, rows: int) -> Bools:
    flags = np.asarray(positive, dtype=np.bool_)
    if flags.shape != (rows,):
        raise ValueError(
            f"positive must be one truth value per score, got shape {flags.shape} for {rows} scores"
        )
    return flags
