"""Totals that resist a single wrong score: conservative over an ensemble, and conditional.

Scores are float64. NaN, a failed score, makes the result NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def disagreement(members: Values) -> Values:
    """Return the population deviation of an ensemble's members, (members, n) → (n,), ≥ 0."""
    deviation: Values = members.std(axis=0)
    return deviation


def mean_minus_deviation(members: Values, penalty: float) -> Values:
    """Return mean − λ · deviation over the members of an ensemble, (members, n) → (n,).

    Uncertainty-weighted optimisation of Coste et al. 2023 (https://arxiv.org/abs/2310.02743), λ ≥ 0
    being `penalty`. The paper subtracts λ times the variance; the deviation has the unit of the
    scores.

    Examples:
        >>> mean_minus_deviation(np.array([[1.0, 2.0], [3.0, 2.0]]), penalty=0.5)
        array([1.5, 2. ])
    """
    total: Values = members.mean(axis=0) - penalty * disagreement(members)
    return total


def counted_where(
    scores: Values, condition: Values, at_least: float, higher_is_better: bool = True
) -> Values:
    """Return scores that count only where a condition reaches a threshold, and else 0, (n,).

    Eq. 8 of GDPO (Liu et al. 2026, https://arxiv.org/abs/2601.05242), for scores of 0 or more. A
    loss (a negative score, or a positive one that is better when lower) always counts: it could
    otherwise be avoided by failing the condition.

    Examples:
        >>> counted_where(np.array([3.0, 3.0, -1.0]), np.array([0.5, 0.1, 0.1]), at_least=0.5)
        array([ 3.,  0., -1.])
    """
    loss = np.minimum(scores, 0.0) if higher_is_better else np.maximum(scores, 0.0)
    counted = np.where(condition >= at_least, scores, loss)
    return np.where(np.isnan(condition), np.nan, counted)
