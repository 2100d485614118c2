"""Learning the thresholds of the adjusted geometric mean from what people prefer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import differential_evolution, minimize

from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Thresholds = tuple[float, float, float, float]

# Thresholds that evolve together, and for how long at most.
_POPULATION = 60
_GENERATIONS = 200


class Agreement(NamedTuple):
    """How often the adjusted geometric mean prefers what people prefer.

    Attributes:
        agreed: Share of pairs whose preferred side has the higher GM, 0 to 1; higher is better.
        tied: Share of pairs whose sides have the same GM, most often 0. They are not agreed on.
    """

    agreed: float
    tied: float


class GMFit(NamedTuple):
    """Fitted thresholds and how they do on the pairs that they were fitted to.

    Attributes:
        thresholds: t1 to t4, as `adjusted_gm` takes them.
        scale: What GM was multiplied by, 0 or more; 0 where nothing could be learned.
        loss: Sum of the hinge losses, from 0 to the number of pairs where the scale was fitted.
        agreement: With the pairs under these thresholds.
        default_agreement: With the pairs under the paper's own, `GM_THRESHOLDS`.
    """

    thresholds: Thresholds
    scale: float
    loss: float
    agreement: Agreement
    default_agreement: Agreement


def fit_gm(
    preferred: npt.ArrayLike,
    rejected: npt.ArrayLike,
    *,
    scale: float | None = None,
    seed: int = 0,
) -> GMFit:
    """Learns t1 to t4 of eq. 1 from pairwise preferences, as Pang & Gimpel (2019) did.

    https://arxiv.org/abs/1810.11878. It minimises the hinge loss over t, in the paper with c = 1:

        Σ max(0, -c · GM(preferred) + c · GM(rejected) + 1)

    GM has a unit, the cube root of perplexity's, so a margin of 1 means less where perplexities
    are high, as those of single sentences are. Each wrongly ordered pair then costs so much that
    the best t makes every GM 0, which costs 1 a pair and prefers nothing. Therefore c, which
    changes no preference, is fitted along unless it is given.

    Where a side is beyond its threshold GM has no gradient, so there is nothing to descend along:
    differential evolution of the paper's and random thresholds finds the valley, and Nelder-Mead
    its bottom. t1 and t2 stay within ±100, t3 and t4 within twice the largest perplexity.

    Thresholds suit the classifier, encoder and language model behind the numbers. Judge them on
    items that they were not fitted to (`pairwise_agreement`).

    Args:
        preferred: Accuracy (or label probability), similarity and perplexity of the preferred
            side of each pair, shape (pairs, 3), in the units of `adjusted_gm`.
        rejected: The same of the other side, shape (pairs, 3).
        scale: c, above 0 and finite: 1 is the paper's loss to the letter. None fits it.
        seed: Of the evolution; the same seed gives the same result.

    Raises:
        ValueError: The shapes are wrong or differ, there is no pair, a number is NaN or outside
            its range, or the scale is not positive and finite.
    """
    if scale is not None and not 0 < scale < np.inf:
        raise ValueError(f"scale = {scale}: give a finite number above 0, or None to fit it")
    better, worse = _pairs(preferred, rejected)
    # First, since it names a number outside its range, which the search would not.
    default = pairwise_agreement(better, worse)
    # One output is in many pairs: its GM is computed once.
    outputs, places = np.unique(np.concatenate([better, worse]), axis=0, return_inverse=True)
    first, second = places.reshape(2, -1)

    def loss_and_scale(thresholds: Floats) -> tuple[float, float]:
        gm = _gm(outputs, _four(thresholds))
        gains = gm[first] - gm[second]
        factor = best_scale(gains) if scale is None else scale
        return hinge_loss(gains, factor), factor

    def loss(thresholds: Floats) -> float:
        return loss_and_scale(thresholds)[0]

    best = _minimise(loss, outputs[:, 2], seed)
    least, factor = loss_and_scale(best)
    fitted = pairwise_agreement(better, worse, _four(best))
    return GMFit(_four(best), factor, least, fitted, default)


def _gm(outputs: Floats, thresholds: Thresholds) -> Floats:
    accuracy, similarity, perplexity = outputs.T
    return adjusted_gm(accuracy, similarity, perplexity, thresholds)


def hinge_loss(gains: Floats, scale: float) -> float:
    """Σ max(0, 1 - c · gain) over pairs, 0 or more; lower is better.

    Args:
        gains: GM(preferred) - GM(rejected) of each pair, shape (pairs,).
        scale: c, 0 or more.
    """
    return float(np.maximum(0.0, 1.0 - scale * gains).sum())


def best_scale(gains: Floats) -> float:
    """The c of 0 or more with the least `hinge_loss`, exactly.

    The loss is convex and piecewise linear in c. Its bends are the inverse positive gains, and the
    least loss is at the first bend behind which it no longer falls.

    Args:
        gains: GM(preferred) - GM(rejected) of each pair, shape (pairs,).
    """
    rising = np.sort(gains[gains > 0])  # the largest of them bends first
    # How fast the loss falls while the k smallest gains are short of the margin, at place k.
    fall = np.concatenate([[0.0], rising.cumsum()]) + gains[gains < 0].sum()
    if fall[-1] <= 0:
        return 0.0
    return float(1.0 / rising[np.flatnonzero(fall <= 0)[-1]])


def pairwise_agreement(
    preferred: npt.ArrayLike, rejected: npt.ArrayLike, thresholds: Thresholds = GM_THRESHOLDS
) -> Agreement:
    """The share of pairs in which the preferred side has the higher GM (the paper: 0.86).

    Args:
        preferred: Accuracy (or label probability), similarity and perplexity of the preferred
            side of each pair, shape (pairs, 3), in the units of `adjusted_gm`.
        rejected: The same of the other side, shape (pairs, 3).
        thresholds: t1 to t4.

    Raises:
        ValueError: As in `fit_gm`.
    """
    better, worse = _pairs(preferred, rejected)
    gain = _gm(better, thresholds) - _gm(worse, thresholds)
    return Agreement(float((gain > 0).mean()), float((gain == 0).mean()))


def pairwise_preferences(
    ratings: npt.ArrayLike, items: Sequence[Hashable], margin: float = 0.0
) -> tuple[Ints, Ints]:
    """Which output is preferred to which, among rated outputs for the same item.

    Args:
        ratings: One an output, shape (n,), higher is better; an output with NaN is in no pair.
        items: What each output was made for, such as its source, shape (n,).
        margin: Ratings that differ by this or less express no preference; 0 or more.

    Returns:
        Places of the preferred and of the rejected outputs, shape (pairs,) each, so that
        `fit_gm(scores[preferred], scores[rejected])` learns from them.

    Raises:
        ValueError: The lengths differ, or the margin is negative.
    """
    rated = np.asarray(ratings, dtype=np.float64)
    if rated.shape != (len(items),):
        raise ValueError(f"ratings has the shape {rated.shape} and items {len(items)} items")
    if not margin >= 0:
        raise ValueError(f"margin = {margin}: give 0 or more")
    outputs = defaultdict(list)
    for place, item in enumerate(items):
        outputs[item].append(place)
    pairs: list[Ints] = [np.empty((0, 2), dtype=np.int64)]
    for members in map(np.array, outputs.values()):
        ahead = rated[members][:, None] - rated[members][None, :] > margin
        pairs.append(members[np.argwhere(ahead)])
    preferred, rejected = np.concatenate(pairs).T
    return preferred, rejected


def _pairs(preferred: npt.ArrayLike, rejected: npt.ArrayLike) -> tuple[Floats, Floats]:
    sides = []
    for name, values in (("preferred", preferred), ("rejected", rejected)):
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != 3:
            raise ValueError(
                f"{name} has the shape {array.shape}: give accuracy, similarity and perplexity of "
                "each pair, (pairs, 3)"
            )
        failed = np.flatnonzero(np.isnan(array).any(axis=1))
        if failed.size:
            raise ValueError(
                f"{name}[{failed[0]}] = {array[failed[0]].tolist()} holds NaN: leave out the pairs "
                "of samples that failed, with NaN for their ratings in pairwise_preferences"
            )
        sides.append(array)
    better, worse = sides
    if len(better) != len(worse) or not len(better):
        raise ValueError(
            f"preferred has {len(better)} pairs and rejected {len(worse)}: give one or more, and "
            "both sides of each"
        )
    return better, worse


def _minimise(loss: Callable[[Floats], float], perplexities: Floats, seed: int) -> Floats:
    """The best thresholds found, no worse than the paper's."""
    finite = perplexities[np.isfinite(perplexities)]
    reach = 2 * finite.max(initial=GM_THRESHOLDS[2])
    high = np.array([100.0, 100.0, reach, reach])
    bounds = list(zip(-high, high, strict=True))
    random = np.random.default_rng(seed)
    found = [np.array(GM_THRESHOLDS)]
    # Most perplexities lie far below the largest, so one population starts among them and one in
    # the whole box: they find different valleys.
    whole = np.array([reach / 2])
    for typical in (finite if finite.size else whole, whole):
        evolved = differential_evolution(
            loss,
            bounds,
            init=_population(typical, high, random),
            maxiter=_GENERATIONS,
            tol=1e-6,
            polish=False,
            seed=seed,
        ).x
        found += [evolved, minimize(loss, evolved, method="Nelder-Mead", bounds=bounds).x]
    return min(found, key=loss)


def _population(typical: Floats, high: Floats, random: np.random.Generator) -> Floats:
    """The paper's and random thresholds, shape (population, 4), within ±high.

    t3 lies between 0 and twice a typical perplexity, t4 below 0 as far.
    """
    starts = random.uniform(-high, high, size=(_POPULATION, 4))
    shares = random.uniform([0.0, -2.0], [2.0, 0.0], size=(_POPULATION, 2))
    starts[:, 2:] = random.choice(typical, size=(_POPULATION, 2)) * shares
    starts[0] = GM_THRESHOLDS
    return starts.clip(-high, high)


def _four(thresholds: Floats) -> Thresholds:
    t1, t2, t3, t4 = (float(t) for t in thresholds)
    return t1, t2, t3, t4
