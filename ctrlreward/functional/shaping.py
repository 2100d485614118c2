"""Reward shaping: references, lengths and ranges.

Rewards are float64, shape (n,); higher is better, and NaN (a failed sample) stays NaN. Lengths are
of the completions in tokens, including the end token, shape (n,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ctrlreward.functional.means import valid_row_means

Values = npt.NDArray[np.float64]


def preference_over_references(rewards: Values, references: Values, scale: float = 1.0) -> Values:
    """Compute mean over m of σ((r − r_m) / scale), in (0, 1), shape (n,).

    Preference as reward (PAR, Fu et al. 2025, https://arxiv.org/abs/2502.18770), with `scale` = 1:
    the probability that a Bradley-Terry model prefers the text to a reference for the same prompt.
    `references` are the rewards of m references for each text, shape (n, m); NaN are left out.

    Examples:
        >>> preference_over_references(np.array([2.0, 9.0]), np.array([[2.0], [2.0]])).round(3)
        array([0.5  , 0.999])
    """
    preferences: Values = expit((rewards[:, None] - references) / scale)
    return valid_row_means(preferences)


def valid_group_means(values: Values, groups: npt.NDArray[np.int64]) -> Values:
    """Return the mean of the values of each one's group that are not NaN, shape (n,).

    `groups` are integers from 0, shape (n,).
    """
    valid = ~np.isnan(values)
    counts = np.bincount(groups, valid)
    with np.errstate(invalid="ignore"):  # a group without values has the mean NaN
        means: Values = np.bincount(groups, np.where(valid, values, 0.0)) / counts
    return means[groups]


def length_factor(lengths: Values, group_means: Values, alpha: float) -> Values:
    """Compute 1 / (1 + α · ℓ / ℓ̄), in (0, 1], shape (n,), by which a reward is multiplied.

    Group relative reward rescaling (GR³, Li et al. 2026, https://arxiv.org/abs/2603.10535): ℓ̄ is
    the mean length of the completions of the prompt, `group_means`. Rewards must be 0 or more: a
    negative one would gain by length.

    Examples:
        >>> length_factor(np.array([10.0, 30.0]), np.array([20.0, 20.0]), alpha=1.0)
        array([0.66666667, 0.4       ])
    """
    ratio = np.divide(lengths, group_means, out=np.ones_like(lengths), where=group_means != 0)
    factor: Values = 1 / (1 + alpha * ratio)
    return factor


def next_multiplier(integral: float, excess: float, rate: float) -> tuple[float, float]:
    """Return the next sum of excesses of a bound and its Lagrange multiplier, both ≥ 0.

    The sum follows projected dual ascent, s ← max(0, s + rate · excess); the multiplier is
    max(0, s + excess), with the proportional term of Stooke et al. 2020
    (https://arxiv.org/abs/2007.03964). `integral` is the sum so far, `excess` how far the mean is
    outside the bound, in standard deviations of the score, negative inside, and `rate` > 0.
    """
    integral = max(0.0, integral + rate * excess)
    return integral, max(0.0, integral + excess)


def constrained_rewards(rewards: Values, terms: Sequence[tuple[float, Values]]) -> Values:
    """Compute (r + Σ λ g) / (1 + Σ λ), the Lagrangian of bounds on the scale of the reward, (n,).

    Constrained RLHF (Moskovitz et al. 2023, https://arxiv.org/abs/2310.04373). `terms` are for each
    bound its multiplier λ ≥ 0, and g, how far each text is on the allowed side of it, in the unit
    of the reward, shape (n,).
    """
    total = 1 + sum(multiplier for multiplier, _ in terms)
    for multiplier, inside in terms:
        rewards = rewards + multiplier * inside
    return rewards / total


def soft_overlong_punishment(lengths: Values, longest: float, cache: float) -> Values:
    """Compute DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), in [−1, 0].

    It is 0 up to `longest` − `cache` (L_max, L_cache) tokens, −1 from `longest` tokens, and linear
    in between.

    Examples:
        >>> soft_overlong_punishment(np.array([80.0, 90.0, 120.0]), longest=100, cache=20)
        array([ 0. , -0.5, -1. ])
    """
    return np.clip((longest - cache - lengths) / cache, -1.0, 0.0)


@dataclass(frozen=True)
class Moments:
    """Running count, mean and sum of squared differences from the mean."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(values: Values) -> Moments:
        """Compute the moments of values, ignoring NaN."""
        valid = values[~np.isnan(values)]
        if not valid.size:
            return Moments()
        mean = float(valid.mean())
        return Moments(valid.size, mean, float(((valid - mean) ** 2).sum()))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        if not count:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        squares = self.squares + other.squares + delta**2 * self.count * other.count / count
        return Moments(count, mean, squares)

    @property
    def std(self) -> float:
        """Population standard deviation; 0 without values."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0
