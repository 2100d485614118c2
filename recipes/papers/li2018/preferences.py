"""Thresholds of the adjusted geometric mean, fitted to pairwise human preferences.

Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878; the mean itself is `transfer.adjusted_gm`.
"""

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
PartialThresholds = tuple[float | None, float | None, float | None, float | None]

# Size of the population in differential evolution, and its largest number of generations.
_POPULATION = 60
_GENERATIONS = 200


def pairwise_preferences(
    ratings: npt.ArrayLike, items: Sequence[Hashable], margin: float = 0.0
) -> tuple[Ints, Ints]:
    """Return the indices of the preferred and the rejected outputs of the same item, both (pairs,).

    `ratings` of the outputs, higher is better, and their `items`, for example sources, have shape
    (n,); NaN excludes an output. Ratings that differ by `margin` ≥ 0 or less express no preference.

    Raises:
        ValueError: The lengths differ, or the margin is negative.

    Examples:
        >>> pairwise_preferences([5, 3, 4], ["menu", "menu", "lake"])
        (array([0]), array([1]))
    """
    rated = np.asarray(ratings, dtype=np.float64)
    if rated.shape != (len(items),):
        raise ValueError(
            f"ratings must have one value per item, got shape {rated.shape} for {len(items)} items"
        )
    if not margin >= 0:
        raise ValueError(f"margin must be 0 or more, got {margin}")
    outputs = defaultdict(list)
    for place, item in enumerate(items):
        outputs[item].append(place)
    pairs: list[Ints] = [np.empty((0, 2), dtype=np.int64)]
    for members in map(np.array, outputs.values()):
        ahead = rated[members][:, None] - rated[members][None, :] > margin
        pairs.append(members[np.argwhere(ahead)])
    preferred, rejected = np.concatenate(pairs).T
    return preferred, rejected


class PairwiseAgreement(NamedTuple):
    """Agreement of the adjusted geometric mean with pairwise human preferences.

    Attributes:
        agreed: Share of pairs whose preferred side has the higher GM, 0 to 1; higher is better.
        tied: Share of pairs whose sides have the same GM, usually 0. They do not count as agreed.

    Examples:
        >>> pairwise_agreement([[0.9, 0.9, 50]], [[0.9, 0.9, 50]])
        PairwiseAgreement(agreed=0.0, tied=1.0)
    """

    agreed: float
    tied: float


class GMFit(NamedTuple):
    """Fitted thresholds and their agreement with the pairs that they were fitted to.

    Attributes:
        thresholds: t1 to t4, as `adjusted_gm` takes them.
        scale: Factor c of GM in the loss, 0 or more; 0 if nothing could be learned.
        loss: Sum of the hinge losses, 0 or more, lower is better; at most the number of pairs if
            the scale was fitted.
        agreement: Agreement under the fitted thresholds.
        default_agreement: Agreement under the paper's thresholds, `GM_THRESHOLDS`.

    Examples:
        >>> fit = fit_gm([[0.9, 0.9, 50]], [[0.7, 0.9, 50]])
        >>> fit.default_agreement.agreed, fit.agreement.agreed
        (1.0, 1.0)
    """

    thresholds: Thresholds
    scale: float
    loss: float
    agreement: PairwiseAgreement
    default_agreement: PairwiseAgreement


def fit_gm(
    preferred: npt.ArrayLike,
    rejected: npt.ArrayLike,
    *,
    scale: float | None = None,
    fixed: PartialThresholds = (None, None, None, None),
    seed: int = 0,
) -> GMFit:
    """Fit t1 to t4 of eq. 1 to pairwise preferences, as Pang & Gimpel (2019) did.

    Minimizes the hinge loss over t, and over c unless `scale` is given:

        Σ max(0, -c · GM(preferred) + c · GM(rejected) + 1)

    The paper has c = 1. GM has a unit, the cube root of perplexity's, so a margin of 1 is small
    when perplexities are high, as they are for single sentences. A wrongly ordered pair then
    costs so much that the best t makes every GM 0, which costs 1 per pair and prefers nothing.
    A factor c changes no preference and removes the problem, so the default is to fit it as well.

    Differential evolution, started from the paper's and random thresholds, finds a good region and
    Nelder-Mead refines it. t1 and t2 stay within ±100, t3 and t4 within twice the largest
    perplexity.

    Fitted thresholds belong to one classifier, encoder and language model. Evaluate them on items
    that were not used for the fit (`pairwise_agreement`).

    Args:
        preferred: Accuracy (or label probability), similarity and perplexity of the preferred
            side of each pair, shape (pairs, 3), in the units of `adjusted_gm`.
        rejected: The same for the rejected side, shape (pairs, 3).
        scale: c, positive and finite; 1 is the paper's loss. None fits it.
        fixed: t1 to t4; None for those to fit. (63, None, 97, -37) fits t2 alone, for a similarity
            other than the paper's.
        seed: Random seed of the evolution; the same seed gives the same result.

    Raises:
        ValueError: The shapes are wrong or differ, or are empty, a number is NaN or out of
            range, the scale is not positive and finite, or all thresholds are fixed.

    Examples:
        >>> preferred = [[0.9, 0.9, 50], [0.8, 0.9, 60]]
        >>> rejected = [[0.7, 0.9, 50], [0.8, 0.8, 60]]
        >>> fit_gm(preferred, rejected).agreement
        PairwiseAgreement(agreed=1.0, tied=0.0)
    """
    if scale is not None and not 0 < scale < np.inf:
        raise ValueError(f"scale must be positive and finite, or None to fit it, got {scale}")
    free = np.array([threshold is None for threshold in fixed])
    if free.shape != (4,) or not free.any():
        raise ValueError(f"fixed must be t1 to t4, with None for thresholds to fit, got {fixed}")
    better, worse = _pairs(preferred, rejected)
    # Before the search, because this raises if a number is out of range.
    default = pairwise_agreement(better, worse)
    # An output occurs in many pairs; its GM is computed once.
    outputs, places = np.unique(np.concatenate([better, worse]), axis=0, return_inverse=True)
    first, second = places.reshape(2, -1)

    def loss_and_scale(thresholds: Floats) -> tuple[float, float]:
        gm = gm_of_rows(outputs, _as_tuple(thresholds))
        gains = gm[first] - gm[second]
        factor = best_scale(gains) if scale is None else scale
        return hinge_loss(gains, factor), factor

    start = np.array([d if t is None else t for t, d in zip(fixed, GM_THRESHOLDS, strict=True)])
    # Bounds: 100 for t1 and t2, twice the largest finite perplexity, at least 194, for t3 and t4.
    finite = outputs[np.isfinite(outputs[:, 2]), 2]
    reach = 2 * finite.max(initial=GM_THRESHOLDS[2])
    high = np.array([100.0, 100.0, reach, reach])
    best = _search(lambda t: loss_and_scale(t)[0], start, free, high, finite, seed)
    best_loss, factor = loss_and_scale(best)
    thresholds = _as_tuple(best)
    fitted = pairwise_agreement(better, worse, thresholds)
    return GMFit(thresholds, factor, best_loss, fitted, default)


def _search(
    loss: Callable[[Floats], float],
    start: Floats,
    free: npt.NDArray[np.bool_],
    high: Floats,
    perplexities: Floats,
    seed: int,
) -> Floats:
    """Return the best thresholds of the search within ±high, never worse than the start."""
    random = np.random.default_rng(seed)

    def whole(searched: Floats) -> Floats:
        thresholds = start.copy()
        thresholds[free] = searched
        return thresholds

    def searched_loss(searched: Floats) -> float:
        return loss(whole(searched))

    candidates = [start[free]]
    bounds = list(zip(-high[free], high[free], strict=True))
    # Most perplexities are far below the largest. One population starts near typical values and
    # one covers the whole box, since they find different minima.
    far = high[2:3] / 2
    for typical in (perplexities if perplexities.size else far, far):
        population = random.uniform(-high, high, size=(_POPULATION, 4))
        # t3 is between 0 and twice a typical perplexity, t4 between minus that and 0.
        shares = random.uniform([0.0, -2.0], [2.0, 0.0], size=(_POPULATION, 2))
        population[:, 2:] = random.choice(typical, size=(_POPULATION, 2)) * shares
        population[0] = start
        evolved = differential_evolution(
            searched_loss,
            bounds,
            init=population.clip(-high, high)[:, free],
            maxiter=_GENERATIONS,
            tol=1e-6,
            polish=False,
            seed=seed,
        ).x
        # The gradient of a loss over GM is 0 beyond a threshold.
        refined = minimize(searched_loss, evolved, method="Nelder-Mead", bounds=bounds).x
        candidates += [evolved, refined]
    return whole(min(candidates, key=searched_loss))


def hinge_loss(gains: Floats, scale: float) -> float:
    """Return Σ max(0, 1 - c · gain) over pairs, 0 or more; lower is better.

    Args:
        gains: GM(preferred) - GM(rejected) of each pair, shape (pairs,).
        scale: c, 0 or more.

    Examples:
        >>> hinge_loss(np.array([2.0, 0.5, -1.0]), scale=1.0)  # 0 + 0.5 + 2
        2.5
    """
    return float(np.maximum(0.0, 1.0 - scale * gains).sum())


def best_scale(gains: Floats) -> float:
    """Return the c ≥ 0 with the smallest `hinge_loss`, exactly.

    The loss is convex and piecewise linear in c with kinks at 1 / gain of the positive gains. Its
    minimum is at the first kink after which it no longer falls.

    Args:
        gains: GM(preferred) - GM(rejected) of each pair, shape (pairs,).

    Examples:
        >>> best_scale(np.array([2.0, 0.5]))  # no loss is left from 1 / 0.5 on
        2.0
    """
    rising = np.sort(gains[gains > 0])  # the largest gain has the first kink
    # fall[k] is how fast the loss falls while only the k smallest gains miss the margin.
    fall = np.concatenate([[0.0], rising.cumsum()]) + gains[gains < 0].sum()
    if fall[-1] <= 0:
        return 0.0
    return float(1.0 / rising[np.flatnonzero(fall <= 0)[-1]])


def gm_of_rows(outputs: Floats, thresholds: Thresholds) -> Floats:
    """Return GM of rows of accuracy, similarity and perplexity, shape (n, 3) → (n,)."""
    accuracy, similarity, perplexity = outputs.T
    return adjusted_gm(accuracy, similarity, perplexity, thresholds)


def pairwise_agreement(
    preferred: npt.ArrayLike, rejected: npt.ArrayLike, thresholds: Thresholds = GM_THRESHOLDS
) -> PairwiseAgreement:
    """Return the share of pairs whose preferred side has the higher GM (0.86 in the paper).

    Args:
        preferred: Accuracy (or label probability), similarity and perplexity of the preferred
            side of each pair, shape (pairs, 3), in the units of `adjusted_gm`.
        rejected: The same for the rejected side, shape (pairs, 3).
        thresholds: t1 to t4.

    Raises:
        ValueError: The shapes are wrong or differ, or are empty, or a number is NaN or out
            of range.

    Examples:
        >>> pairwise_agreement([[0.9, 0.9, 50], [0.7, 0.9, 50]], [[0.8, 0.9, 50], [0.9, 0.9, 50]])
        PairwiseAgreement(agreed=0.5, tied=0.0)
    """
    better, worse = _pairs(preferred, rejected)
    gain = gm_of_rows(better, thresholds) - gm_of_rows(worse, thresholds)
    return PairwiseAgreement(float((gain > 0).mean()), float((gain == 0).mean()))


def _pairs(preferred: npt.ArrayLike, rejected: npt.ArrayLike) -> tuple[Floats, Floats]:
    sides = []
    for name, values in (("preferred", preferred), ("rejected", rejected)):
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != 3:
            raise ValueError(
                f"{name} must be accuracy, similarity and perplexity of each pair, shape "
                f"(pairs, 3), got {array.shape}"
            )
        failed = np.flatnonzero(np.isnan(array).any(axis=1))
        if failed.size:
            raise ValueError(
                f"{name}[{failed[0]}] = {array[failed[0]].tolist()} contains NaN. Leave out pairs "
                "with failed samples, for example by a NaN rating in pairwise_preferences."
            )
        sides.append(array)
    better, worse = sides
    if len(better) != len(worse) or not len(better):
        raise ValueError(
            "preferred and rejected must be both sides of one or more pairs, got "
            f"{len(better)} and {len(worse)}"
        )
    return better, worse


def _as_tuple(thresholds: Floats) -> Thresholds:
    t1, t2, t3, t4 = thresholds.tolist()
    return t1, t2, t3, t4
