"""Transformations of rewards on their way to advantages.

Rewards have one value a sample, float64, shape (n,); higher is better, and a failed one is NaN and
stays NaN. Lengths are tokens of the completions, the end token included, shape (n,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

# Added to a standard deviation before it divides: equal rewards differ by rounding alone.
_EPSILON = 1e-8

# Ziegler et al. 2019, section 2.2: the relative error counts up to here.
_LARGEST_ERROR = 0.2


def piecewise_linear(step: float, points: Sequence[tuple[float, float]]) -> float:
    """A value that goes in straight lines from point to point, and holds before and after them.

    Args:
        step: Where it is asked for.
        points: Pairs of step and value, by rising step; at least one.
    """
    steps, values = zip(*points, strict=True)
    return float(np.interp(step, steps, values))


def potential_difference(before: Values, after: Values, discount: float = 1.0) -> Values:
    """F = γΦ(s') − Φ(s) (Ng, Harada & Russell 1999, eq. 2), for whole texts as episodes.

    The theorem says that F changes no optimum if the potential of the state in which an episode
    ends is 0. A whole text makes one step, so that would leave −Φ(s), a constant of the prompt:
    that is `discount` = 0, a baseline. With the text's own potential, the sum rewards what Φ
    values: with `discount` = 1, by how much the text is better than what was there before it.

    Args:
        before: Φ of what was there before the text was written.
        after: Φ of the text.
        discount: γ, in [0, 1].
    """
    return discount * after - before


def tokens_outside(lengths: Values, low: float, high: float) -> Values:
    """By how many tokens a length falls short of `low` or goes beyond `high`; 0 between them."""
    return np.maximum(low - lengths, 0.0) + np.maximum(lengths - high, 0.0)


def soft_overlong_punishment(lengths: Values, longest: float, cache: float) -> Values:
    """0 for short completions, −1 for those beyond `longest`, and a line between the two over the
    last `cache` tokens (DAPO, Yu et al. 2025, eq. 13).

    Args:
        lengths: In tokens.
        longest: L_max.
        cache: L_cache, greater than 0.
    """
    return np.clip((longest - cache - lengths) / cache, -1.0, 0.0)


def adaptive_kl_coef(kl_coef: float, kl: float, target: float, horizon: float = 10.0) -> float:
    """The next weight of the KL term: larger where the divergence exceeds its target.

    Ziegler et al. 2019, section 2.2: e = clip(KL / target − 1, −0.2, 0.2) and
    β ← β · (1 + K_β · e), with K_β = 1 / `horizon`; theirs is 0.1.

    Args:
        kl_coef: β as it is.
        kl: The divergence that was measured under it, in the unit of the target.
        target: The one that is wanted, greater than 0.
        horizon: 1 / K_β, in updates of β.
    """
    error = min(max(kl / target - 1, -_LARGEST_ERROR), _LARGEST_ERROR)
    return kl_coef * (1 + error / horizon)


@dataclass(frozen=True)
class Moments:
    """Count, mean and variance of values, of which the values themselves are not kept.

    Attributes:
        count: How many values.
        mean: Of them.
        squares: The sum of their squared differences from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(values: Values) -> Moments:
        """The moments of values; NaN counts for nothing."""
        valid = values[~np.isnan(values)]
        if not valid.size:
            return Moments()
        mean = float(valid.mean())
        return Moments(valid.size, mean, float(((valid - mean) ** 2).sum()))

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets of values together (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        squares = self.squares + other.squares + apart**2 * self.count * other.count / count
        return Moments(count, mean, squares)

    @property
    def std(self) -> float:
        """Standard deviation of the population; 0 of no values."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def normalised(rewards: Values, moments: Moments) -> Values:
    """By how many standard deviations a reward lies above the mean."""
    return (rewards - moments.mean) / (moments.std + _EPSILON)
