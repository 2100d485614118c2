"""Paired tests of two validations, and intervals that hold at all validations of a run together.

Two validations complete the same prompts and are compared prompt by prompt, by flips of the signs
of the differences (Fisher 1935, The Design of Experiments, sec. 21): exact for any number of
prompts and any distribution, if the validations are exchangeable. The interval contains each shift
that the test does not reject (Hartigan 1969). Failed prompts are left out in pairs: if bad texts
fail at one validation only, the level does not hold.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Sums of sign patterns are counted on a grid, and rounding counts against the difference: less than
# 1 % of a standard deviation of the sum with up to 64 prompts, 2 % with 128.
GRID = 1 << 15
# More prompts than this are added up in groups, whose sums are symmetric as well.
GROUPS = 128
BISECTIONS = 10  # of the range of differences: a thousandth of it


class PromptScores(np.ndarray[Any, np.dtype[np.float64]]):
    """Score of each prompt, shape (prompts,), NaN without one, which knows its prompts.

    `prompts` is a digest of the prompts in their order, "" if they are unknown, as in results of
    arithmetic and copies.
    """

    prompts: str = ""

    def __new__(cls, values: npt.ArrayLike, prompts: str) -> Self:
        scores = np.asarray(values, np.float64).view(cls)
        scores.prompts = prompts
        return scores


class PairedDifference(NamedTuple):
    """Mean of scores - `minus` over the prompts that both have, with its interval.

    The ends are infinite if there are too few prompts for the level. `failed` are the numbers of
    prompts that have no score, and no score to subtract.
    """

    value: float
    low: float
    high: float
    prompts: int
    failed: tuple[int, int] = (0, 0)

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def check_level(level: float) -> None:
    """Raise a ValueError unless 0 < level < 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")


def level_of_test(level: float, k: int) -> float:
    """Return the level of the k-th test of a run, from 1, level · 6 / (π² k²).

    The levels sum to `level`, in (0, 1), which so bounds the probability of any false rejection in
    the whole run.
    """
    return level * 6 / (math.pi * k) ** 2


def sign_flip_p_value(differences: npt.ArrayLike) -> float:
    """Return the one-sided p-value of a positive sum, exact if each value is symmetric about 0.

    The share of the 2ⁿ sign patterns with a sum at least as large as the observed one, in [2⁻ⁿ, 1];
    1 without values, or if all are 0. The sums are rounded to a grid in the conservative direction.
    `differences` have shape (n,). Raises a ValueError if one is not finite.

    Examples:
        >>> sign_flip_p_value([0.5, 0.25, -0.25])  # sums of 1, 0.5, 0.5 and 5 smaller ones
        0.375
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    if len(values) == 0:
        return 1.0
    if not np.isfinite(values).all():
        raise ValueError("differences must be finite. Leave out prompts without a score.")
    # By a power of 2, which is exact: sums of the largest floats, and a grid for the smallest ones,
    # would be infinite.
    values = np.ldexp(values, -math.frexp(float(np.abs(values).max()))[1])
    sizes = np.abs(values)
    scale = min(GRID, max(GRID / 8, 64 * len(sizes) ** 1.5)) / sizes.sum()
    steps = np.rint(sizes * scale).astype(np.int64)
    # Shares of all subsets by their sum: the sum of a sign pattern is twice the sum of its positive
    # values minus the sum of all.
    shares = np.zeros(int(steps.sum()) + 1)
    shares[0] = 1.0
    reached = 0
    for step in sorted(steps.tolist()):
        after = shares[: reached + 1] / 2
        shares[: reached + 1] = after
        shares[step : reached + step + 1] += after
        reached += step
    observed = values.sum() * scale
    rounding = len(sizes) / 2
    smallest = math.ceil((observed - rounding + reached) / 2 - 1e-9)
    return float(min(1.0, shares[max(0, smallest) :].sum()))


def two_sided_p_value(differences: npt.ArrayLike) -> float:
    """Return the two-sided p-value of a sum other than 0, as `sign_flip_p_value`, in (0, 1]."""
    values = np.asarray(differences, dtype=np.float64)
    sums = np.bincount(np.arange(len(values)) % GROUPS, weights=values)
    return min(1.0, 2 * min(sign_flip_p_value(sums), sign_flip_p_value(-sums)))


def paired_difference(
    scores: npt.ArrayLike, *, minus: npt.ArrayLike, level: float = 0.05
) -> PairedDifference:
    """Return the mean of scores - minus, of two systems or validations, with its interval.

    Positive if `scores` are higher. NaN and an infinite interval without a prompt that both have.

    Args:
        scores: Score of each prompt, shape (n,). NaN if it could not be scored.
        minus: Scores of the same prompts, which are subtracted.
        level: Probability that the interval misses the difference, in (0, 1); it is two-sided. For
            an interval that holds at all validations together, `level_of_test(level, k)`.

    Examples:
        >>> tuned, base = [0.3, 0.6, 0.5, 0.5, 0.5, 0.8], [0.1, 0.5, 0.3, 0.2, 0.4, 0.6]
        >>> paired_difference(tuned, minus=base)
        PairedDifference(value=0.183..., low=0.0999..., high=0.3, prompts=6, failed=(0, 0))
    """
    sums, sizes = _grouped(minus, scores)
    check_level(level)
    failed = int(np.isnan(scores).sum()), int(np.isnan(minus).sum())
    if len(sums) == 0:
        return PairedDifference(math.nan, -math.inf, math.inf, 0, failed)
    value = float(sums.sum() / sizes.sum())
    low = _lower_end(sums, sizes, level / 2)
    high = -_lower_end(-sums, sizes, level / 2)
    return PairedDifference(value, low, high, int(sizes.sum()), failed)


def rise_p_value(before: npt.ArrayLike, after: npt.ArrayLike, margin: float = 0.0) -> float:
    """Return the one-sided p-value of a rise by more than `margin`, by flips of signs, in (0, 1].

    `before` and `after` have the score of each prompt, shape (n,), NaN if it failed; `margin` is
    the smallest rise that matters, in units of the score, ≥ 0. 1 without a prompt that both have.
    Raises a ValueError if the shapes differ.

    Examples:
        >>> rise_p_value([0.1, 0.5, 0.3], [0.3, 0.6, 0.5])
        0.125
    """
    sums, sizes = _grouped(before, after)
    return sign_flip_p_value(sums - margin * sizes)


def detectable_difference(
    before: npt.ArrayLike, after: npt.ArrayLike, level: float = 0.05, power: float = 0.8
) -> float:
    """Return the difference of two validations that these prompts show with the given power, ≥ 0.

    (t₁₋level/2 + t_power) · s / √n, with the standard deviation s of the prompts' differences
    (Cohen 1988, ch. 2). Infinity with fewer than two prompts that both have. Scores are as in
    `rise_p_value`; level and power refer to a two-sided test, in (0, 1).
    """
    differences = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    valid = differences[np.isfinite(differences)]
    if len(valid) < 2:
        return math.inf
    from scipy import stats  # takes half a second

    quantiles = stats.t.isf([level / 2, 1 - power], len(valid) - 1).sum()
    return float(quantiles * valid.std(ddof=1) / math.sqrt(len(valid)))


def jackknife_values(whole: float, without: npt.ArrayLike) -> Floats:
    """Return the jackknife value of each prompt for a figure of the whole corpus, shape (n,).

    n · θ - (n - 1) · θ₍₋ᵢ₎ (Tukey 1958; Efron and Tibshirani 1993, eq. 11.19), where θ is `whole`,
    the figure of all prompts, and θ₍₋ᵢ₎ the figure without prompt i.
    """
    left_out = np.asarray(without, dtype=np.float64)
    n = len(left_out)
    return np.asarray(n * whole - (n - 1) * left_out)


def _grouped(before: npt.ArrayLike, after: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the sum of the differences of each group of prompts, and its number of prompts."""
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"before has shape {first.shape} and after {second.shape}, must have a value for each "
            "of the same prompts"
        )
    differences = (second - first)[np.isfinite(second - first)]
    groups = np.arange(len(differences)) % GROUPS
    sums: Floats = np.bincount(groups, weights=differences).astype(np.float64)
    return sums, np.bincount(groups).astype(np.float64)


def _lower_end(sums: Floats, sizes: Floats, level: float) -> float:
    if 2.0 ** -len(sums) > level:
        return -math.inf
    rejected, accepted = float((sums / sizes).min()), float(sums.sum() / sizes.sum())
    for _ in range(BISECTIONS):
        middle = (rejected + accepted) / 2
        if sign_flip_p_value(sums - middle * sizes) <= level:
            rejected = middle
        else:
            accepted = middle
    return rejected
