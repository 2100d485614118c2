"""Hinge loss of pairwise preferences, and the search for GM's thresholds that minimises it.

Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878; `preferences.fit_gm` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import differential_evolution, minimize

from ctrlreward.functional.transfer import GM_THRESHOLDS

Floats = npt.NDArray[np.float64]

# Size of the population in differential evolution, and its largest number of generations.
_POPULATION = 60
_GENERATIONS = 200


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


def minimise(
    loss: Callable[[Floats], float],
    start: Floats,
    free: npt.NDArray[np.bool_],
    seed: int,
    perplexities: Floats,
) -> Floats:
    """Return the best thresholds of the search, never worse than the start.

    A loss over GM has no gradient beyond a threshold. Differential evolution finds a good region
    and Nelder-Mead refines it.

    Args:
        loss: Loss of thresholds, shape (4,).
        start: t1 to t4 where the search starts, shape (4,), within `search_bounds`.
        free: True for the thresholds to search; the others keep their start. Shape (4,).
        seed: Random seed of the evolution.
        perplexities: Perplexities of the outputs, 1 or more, for typical values of t3 and t4.

    Returns:
        Shape (4,).

    Examples:
        >>> start, free = np.array([63.0, 71.0, 97.0, -37.0]), np.array([False, True, False, False])
        >>> best = minimise(lambda t: abs(t[1] - 20), start, free, 0, np.array([50.0, 90.0]))
        >>> best.round(1).tolist()
        [63.0, 20.0, 97.0, -37.0]
    """
    high = search_bounds(perplexities)
    bounds = list(zip(-high[free], high[free], strict=True))
    random = np.random.default_rng(seed)

    def whole(searched: Floats) -> Floats:
        thresholds = start.copy()
        thresholds[free] = searched
        return thresholds

    def searched_loss(searched: Floats) -> float:
        return loss(whole(searched))

    candidates = [start[free]]
    finite = perplexities[np.isfinite(perplexities)]
    # Most perplexities are far below the largest. One population starts near typical values and
    # one covers the whole box, since they find different minima.
    far = high[2:3] / 2
    for typical in (finite if finite.size else far, far):
        evolved = differential_evolution(
            searched_loss,
            bounds,
            init=_population(typical, start, high, random)[:, free],
            maxiter=_GENERATIONS,
            tol=1e-6,
            polish=False,
            seed=seed,
        ).x
        refined = minimize(searched_loss, evolved, method="Nelder-Mead", bounds=bounds).x
        candidates += [evolved, refined]
    return whole(min(candidates, key=searched_loss))


def search_bounds(perplexities: Floats) -> Floats:
    """Return the largest size of t1 to t4 in the search, shape (4,).

    It is 100 for t1 and t2, and twice the largest finite perplexity, at least 194, for t3 and t4.

    Examples:
        >>> search_bounds(np.array([50.0, 300.0, np.inf])).tolist()
        [100.0, 100.0, 600.0, 600.0]
    """
    finite = perplexities[np.isfinite(perplexities)]
    reach = 2 * finite.max(initial=GM_THRESHOLDS[2])
    return np.array([100.0, 100.0, reach, reach])


def _population(
    typical: Floats, start: Floats, high: Floats, random: np.random.Generator
) -> Floats:
    """Return the start and random thresholds, shape (population, 4), within ±high.

    t3 is between 0 and twice a typical perplexity, t4 between minus that and 0.
    """
    starts = random.uniform(-high, high, size=(_POPULATION, 4))
    shares = random.uniform([0.0, -2.0], [2.0, 0.0], size=(_POPULATION, 2))
    starts[:, 2:] = random.choice(typical, size=(_POPULATION, 2)) * shares
    starts[0] = start
    return starts.clip(-high, high)
