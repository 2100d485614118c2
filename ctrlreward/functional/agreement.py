"""Agreement between repeated measurements (QRA++, Belz 2025, https://arxiv.org/abs/2505.17043).

Type I, a single number: CV* (`cv_star`). Type II, a set of numbers: Pearson's r and Spearman's ρ
(`correlate`). Type IV, a finding: the share of findings that are upheld (`findings_upheld`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import exp, isnan, lgamma, nan, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Correlation(NamedTuple):
    """Correlations of n pairs, -1 to 1 (type II); higher is better, NaN where undefined.

    Examples:
        >>> correlate([1, 2, 3], [3, 2, 1]).n
        3
    """

    pearson: float
    spearman: float
    n: int


class Findings(NamedTuple):
    """Findings that two runs agree on (type IV): `upheld` of the `total` that both define."""

    upheld: int
    total: int

    @property
    def share(self) -> float:
        """Share of findings upheld, 0 to 1, higher is better; NaN if there are none.

        Examples:
            >>> Findings(upheld=3, total=4).share
            0.75
        """
        return self.upheld / self.total if self.total else nan


def cv_star(values: Sequence[float]) -> float:
    """Return CV*, the coefficient of variation for small samples (type I); lower is better.

    Belz et al. (2022), https://aclanthology.org/2022.acl-long.2:

        CV* = (1 + 1/(4n)) · s / (c4(n) · |mean|) · 100

    The scale needs a true zero, so shift a rating of 1 to 5 to start at 0 first. `values` are one
    score measured in n ≥ 2 runs, experiments or studies. Per cent, 0 (identical values) or more;
    NaN if a value is NaN.

    Raises:
        ValueError: `values` has fewer than two values, or their mean is 0.

    Examples:
        >>> round(cv_star([0.9, 1.1]), 1)
        19.9
    """
    measured = np.asarray(values, dtype=np.float64)
    n = measured.size
    if n < 2:
        raise ValueError(f"values has {n} item: CV* compares 2 or more measurements")
    mean = measured.mean()
    if mean == 0:
        raise ValueError(f"values = {list(values)} have mean 0: CV* is relative to the mean")
    deviation = measured.std(ddof=1) / c4(n)
    return float((1 + 1 / (4 * n)) * deviation / abs(mean) * 100)


def c4(n: int) -> float:
    """Return the expected sample deviation of n ≥ 2 normal values of unit variance, in (0, 1).

        c4(n) = √(2 / (n - 1)) · Γ(n / 2) / Γ((n - 1) / 2)

    Examples:
        >>> round(c4(2), 4)  # √(2 / π)
        0.7979
    """
    if n < 2:
        raise ValueError(f"n = {n}: a sample standard deviation takes 2 or more values")
    return sqrt(2 / (n - 1)) * exp(lgamma(n / 2) - lgamma((n - 1) / 2))


def correlate(first: npt.ArrayLike, second: npt.ArrayLike) -> Correlation:
    """Return Pearson's r and Spearman's ρ of n pairs of values (type II).

    A pair with a NaN or infinite value is left out, and not counted in `n`. Both are NaN for fewer
    than three pairs (two points always lie on a line) and for a constant side. Other lengths raise
    a ValueError.

    Examples:
        >>> result = correlate([1, 2, 3, 4], [1, 3, 2, 4])
        >>> round(result.pearson, 3), round(result.spearman, 3), result.n
        (0.8, 0.8, 4)
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(
            f"first and second must have the same length, got {a.size} and {b.size} values"
        )
    both = np.isfinite(a) & np.isfinite(b)
    a, b = a[both], b[both]
    if a.size < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(nan, nan, a.size)
    from scipy import stats  # takes half a second

    pearson, spearman = stats.pearsonr(a, b).statistic, stats.spearmanr(a, b).statistic
    return Correlation(float(pearson), float(spearman), a.size)


def findings_upheld(first: Mapping[str, float], second: Mapping[str, float]) -> Findings:
    """Count the pairs of systems that two runs order in the same way (type IV).

    Each run maps a system to its value. A tie is a finding, upheld only by a tie. A system that is
    missing or NaN in either run contributes no findings.

    Examples:
        >>> findings_upheld({"A": 0.7, "B": 0.8, "C": 0.9}, {"A": 0.6, "B": 0.9, "C": 0.8})
        Findings(upheld=2, total=3)
    """
    shared = [s for s in first if s in second and not isnan(first[s]) and not isnan(second[s])]
    same = [
        np.sign(first[a] - first[b]) == np.sign(second[a] - second[b])
        for a, b in combinations(shared, 2)
    ]
    return Findings(sum(map(bool, same)), len(same))
