"""How far repeated measurements of one quantity agree (quantified reproducibility assessment).

QRA++ (Belz, 2025, https://arxiv.org/abs/2505.17043) tells four types of results apart, each with
measures of its own for how well it was reproduced:

- Type I, a single number: CV* (`cv_star`).
- Type II, a set of numbers: Pearson's r and Spearman's ρ (`correlate`).
- Type III, a set of labels: Fleiss' κ and Krippendorff's α (`fleiss_kappa`,
  `krippendorff_alpha`).
- Type IV, a finding: the share of findings that are upheld (`findings_upheld`).

`reproducibility.compare_tables` applies types I, II and IV to whole tables of results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import exp, isnan, lgamma, nan, sqrt
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from scipy import stats

Rating = TypeVar("Rating")


class Correlation(NamedTuple):
    """Type II: how alike two sets of numbers are; 1 is best, NaN where it says nothing.

    Attributes:
        pearson: Whether one is a straight line of the other, -1 to 1.
        spearman: Whether both have the same order, -1 to 1.
        n: How many pairs of numbers it rests on.
    """

    pearson: float
    spearman: float
    n: int


class Findings(NamedTuple):
    """Type IV: how many findings were upheld.

    Attributes:
        upheld: How many came out the same.
        total: How many there were.
    """

    upheld: int
    total: int

    @property
    def share(self) -> float:
        """Upheld ones among all, 0 to 1, higher is better; NaN where there were none."""
        return self.upheld / self.total if self.total else nan


def cv_star(values: Sequence[float]) -> float:
    """CV*, the coefficient of variation for small samples; lower is better reproduced. Type I.

    Belz et al. (2022), https://aclanthology.org/2022.acl-long.2:

        CV* = (1 + 1/(4n)) · s / (c4(n) · |mean|) · 100

    s / c4(n) estimates the standard deviation without bias, 1 + 1/(4n) corrects the quotient for
    small n. It presumes a scale whose zero is a true one (a rating from 1 to 5 is shifted first).
    Of two values it is, but for 0.3 %, their distance in per cent of their mean.

    Args:
        values: The same score from n ≥ 2 runs, experiments or studies.

    Returns:
        Per cent, 0 (identical) or more; NaN where a value is NaN.

    Raises:
        ValueError: There is only one value, or the mean is 0.
    """
    measured = np.asarray(values, dtype=np.float64)
    n = measured.size
    if n < 2:
        raise ValueError(f"values has {n} item: CV* compares 2 or more measurements")
    mean = measured.mean()
    if mean == 0:
        raise ValueError(f"values = {list(values)} have the mean 0: CV* is relative to the mean")
    deviation = measured.std(ddof=1) / c4(n)
    return float((1 + 1 / (4 * n)) * deviation / abs(mean) * 100)


def c4(n: int) -> float:
    """Expected sample standard deviation of n normal values of unit variance, 0 to 1.

        c4(n) = √(2 / (n - 1)) · Γ(n / 2) / Γ((n - 1) / 2)

    Raises:
        ValueError: n is less than 2.
    """
    if n < 2:
        raise ValueError(f"n = {n}: a sample standard deviation takes 2 or more values")
    return sqrt(2 / (n - 1)) * exp(lgamma(n / 2) - lgamma((n - 1) / 2))


def correlate(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Pearson's r and Spearman's ρ of paired values. Type II.

    Args:
        first: Values of one run, shape (n,).
        second: Values of the other, in the same order.

    Returns:
        Both NaN where there are fewer than three pairs (two always lie on a line), where a side
        is constant, or where a value is NaN.

    Raises:
        ValueError: The lengths differ.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"first has {a.size} values and second {b.size}: give them in pairs")
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
    if a.size < 3 or not finite or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(nan, nan, a.size)
    pearson, spearman = stats.pearsonr(a, b).statistic, stats.spearmanr(a, b).statistic
    return Correlation(float(pearson), float(spearman), a.size)


def findings_upheld(first: Mapping[str, float], second: Mapping[str, float]) -> Findings:
    """Of how many pairs of systems the same one is ahead in both runs. Type IV.

    A tie is a finding too: it is upheld by a tie alone. Two systems that a run lacks, or has as
    NaN, give no finding.

    Args:
        first: Value of each system, in one metric and one run.
        second: In the other run.
    """
    shared = [s for s in first if s in second and not isnan(first[s]) and not isnan(second[s])]
    same = [
        np.sign(first[a] - first[b]) == np.sign(second[a] - second[b])
        for a, b in combinations(shared, 2)
    ]
    return Findings(sum(map(bool, same)), len(same))


def fleiss_kappa(labels: Sequence[Sequence[str]]) -> float:
    """Fleiss' κ: agreement of several raters, or runs, on labels, beyond chance. Type III.

    Args:
        labels: Shape (items, raters), each item with the label that each rater gave it.

    Returns:
        At most 1 (all agree); 0 is chance; NaN where only one label occurs at all.

    Raises:
        ValueError: The items have not equally many labels, or fewer than two.
        ImportError: statsmodels is not installed.
    """
    try:
        from statsmodels.stats import inter_rater
    except ImportError as error:
        raise _not_installed("Fleiss' κ", "statsmodels") from error
    counts, _ = inter_rater.aggregate_raters(np.asarray(_rectangle(labels), dtype=str))
    return float(inter_rater.fleiss_kappa(counts)) if counts.shape[1] > 1 else nan


def krippendorff_alpha(
    ratings: Sequence[Sequence[str | float | None]],
    level: Literal["nominal", "ordinal", "interval", "ratio"] = "nominal",
) -> float:
    """Krippendorff's α: agreement of several raters, or runs, some of them absent. Type III.

    Args:
        ratings: Shape (items, raters); labels where `level` is nominal, else numbers. None is a
            rating that is missing.
        level: Of measurement; how far two ratings are apart.

    Returns:
        At most 1 (all agree); 0 is chance; NaN where the items with two ratings or more, which
        alone count, have only one rating or none.

    Raises:
        ValueError: The items have not equally many ratings, or fewer than two; or a rating is no
            number and `level` not nominal.
        ImportError: krippendorff is not installed.
    """
    try:
        import krippendorff
    except ImportError as error:
        raise _not_installed("Krippendorff's α", "krippendorff") from error
    rows = [row for row in _rectangle(ratings) if sum(r is not None for r in row) > 1]
    present = [rating for row in rows for rating in row if rating is not None]
    codes: dict[str | float, float]
    if level == "nominal":
        codes = {rating: float(i) for i, rating in enumerate(dict.fromkeys(present))}
    else:
        codes = {rating: _number(rating, level) for rating in present}
    if len(codes) < 2:
        return nan
    data = np.array([[nan if r is None else codes[r] for r in row] for row in rows]).T
    return float(krippendorff.alpha(reliability_data=data, level_of_measurement=level))


def _rectangle(ratings: Sequence[Sequence[Rating]]) -> list[list[Rating]]:
    """Items × raters, where each item has the same number of ratings and that is 2 or more."""
    rows = [list(row) for row in ratings]
    for i, row in enumerate(rows):
        if len(row) < 2 or len(row) != len(rows[0]):
            raise ValueError(
                f"item {i} has {len(row)} ratings and item 0 has {len(rows[0])}: "
                "give each item one of each rater, of 2 raters or more"
            )
    if not rows:
        raise ValueError("there are no items: give one or more, each with its ratings")
    return rows


def _number(rating: str | float, level: str) -> float:
    if isinstance(rating, str):
        raise ValueError(
            f"the rating {rating!r} is no number: level = {level!r} takes numbers, and 'nominal' "
            "takes labels"
        )
    return float(rating)


def _not_installed(measure: str, package: str) -> ImportError:
    return ImportError(f"{measure} needs {package}: pip install 'ctrlreward[agreement]'")
