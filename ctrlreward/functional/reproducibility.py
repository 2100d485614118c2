"""Agreement of repeated measurements and of whole tables of results, QRA++.

Belz (2025), https://arxiv.org/abs/2505.17043. Type I, a single number: CV* (`cv_star`). Type II, a
set of numbers: Pearson's r and Spearman's ρ (`correlate`). Type IV, a finding: the share of
findings that are upheld (`findings_upheld`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, isfinite, isnan, lgamma, nan, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = Mapping[str, float]  # system → value
Table: TypeAlias = Mapping[str, Column]  # metric → system → value


# One number, one set of numbers, one finding


class Correlation(NamedTuple):
    """Correlations of n pairs, -1 to 1 (type II); higher is better, NaN where undefined."""

    pearson: float
    spearman: float
    n: int


class Findings(NamedTuple):
    """Findings that two runs agree on (type IV): `upheld` of the `total` that both define."""

    upheld: int
    total: int

    @property
    def share(self) -> float:
        """Share of findings upheld, 0 to 1, higher is better; NaN if there are none."""
        return self.upheld / self.total if self.total else nan


def cv_star(values: Sequence[float]) -> float:
    """Return CV*, the coefficient of variation for small samples (type I); lower is better.

    Belz et al. (2022), https://aclanthology.org/2022.acl-long.2:

        CV* = (1 + 1/(4n)) · s / (c4(n) · |mean|) · 100

    The scale needs a true zero, so shift a rating of 1 to 5 to start at 0 first. `values` are one
    score measured in n ≥ 2 runs, experiments or studies. Per cent, 0 (identical values) or more;
    NaN if a value is NaN. A ValueError for fewer than two values, or a mean of 0.

    Examples:
        >>> round(cv_star([0.9, 1.1]), 1)
        19.9
    """
    measured = np.asarray(values, dtype=np.float64)
    n, mean = measured.size, measured.mean() if measured.size else 0.0
    if n < 2 or mean == 0:
        raise ValueError(f"values must be 2 or more of a mean other than 0, got {list(values)}")
    deviation = measured.std(ddof=1) / c4(n)
    return float((1 + 1 / (4 * n)) * deviation / abs(mean) * 100)


def c4(n: int) -> float:
    """Return the expected sample deviation of n ≥ 2 normal values of unit variance, in (0, 1).

    c4(n) = √(2 / (n - 1)) · Γ(n / 2) / Γ((n - 1) / 2)
    """
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

    ranks = stats.rankdata(a), stats.rankdata(b)
    pearson, spearman = (float(np.corrcoef(pair)[0, 1]) for pair in ((a, b), ranks))
    return Correlation(pearson, spearman, a.size)


def findings_upheld(first: Column, second: Column) -> Findings:
    """Count the pairs of systems that two runs order in the same way (type IV).

    A tie is a finding, upheld only by a tie. A system that is missing or NaN in either run
    contributes no findings.

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


# Whole tables


class Gap(NamedTuple):
    """A value that was left out of a comparison, and the reason in words."""

    metric: str
    system: str
    reason: str


@dataclass(frozen=True)
class MetricAgreement:
    """Agreement of several runs in one metric.

    Attributes:
        cv_star: CV* of each system, per cent, lower is better; NaN where undefined.
        mean_cv_star: Mean over systems, without NaN.
        correlation: Correlation of the systems' values in two runs; for more than two runs the
            mean over pairs of runs. For two systems 1 if they keep their order and -1 if they
            swap; NaN if they tie in one run.
        findings: Pairs of systems that the runs order in the same way, summed over pairs of runs.
    """

    cv_star: Mapping[str, float]
    mean_cv_star: float
    correlation: Correlation
    findings: Findings


@dataclass(frozen=True)
class StudyAgreement:
    """Agreement of several runs of one study.

    Attributes:
        metrics: Agreement in each metric.
        systems: Correlation of the values of each system that all runs have in some metric, over
            metrics; NaN for fewer than three. Metrics on different scales raise it.
        mean_cv_star: Mean of the metrics' mean CV*, per cent; lower is better.
        correlation: Mean over metrics; `n` is the number of metrics with a correlation.
        system_correlation: Mean over systems; `n` is the number of systems with a correlation.
        findings: Findings of all metrics together.
        gaps: Values left out.
    """

    metrics: Mapping[str, MetricAgreement]
    systems: Mapping[str, Correlation]
    mean_cv_star: float
    correlation: Correlation
    system_correlation: Correlation
    findings: Findings
    gaps: tuple[Gap, ...]


def compare_tables(tables: Sequence[Table]) -> StudyAgreement:
    """Compare the tables of n ≥ 2 runs of one study by types I, II and IV of QRA++.

    A system whose value is missing or not finite in one run is left out of the metric for all runs.
    CV* is also left out for values on both sides of 0 and for values that are all 0. Each omission
    is reported as a `Gap`. A ValueError if `tables` has fewer than two, or they have no metric or
    no system in common.

    Examples:
        >>> first = {"sim": {"A": 0.5, "B": 0.6, "C": 0.7}}
        >>> compare_tables([first, {"sim": {"A": 0.5, "B": 0.7, "C": 0.6}}]).findings
        Findings(upheld=2, total=3)
    """
    if len(tables) < 2:
        raise ValueError(f"tables must be the tables of 2 or more runs, got {len(tables)}")
    names = list(dict.fromkeys(metric for table in tables for metric in table))
    of_systems = [dict.fromkeys(name for column in t.values() for name in column) for t in tables]
    for kind, named in (("metric", tables), ("system", of_systems)):
        if not set.intersection(*map(set, named)):
            listed = [", ".join(each)[:300] or "none" for each in named]
            raise ValueError(f"tables must have a {kind} in common, got {' and '.join(listed)}")
    gaps: list[Gap] = []
    shared = {}
    metrics = {}
    for metric in names:
        columns = [table.get(metric, {}) for table in tables]
        shared[metric], metrics[metric] = _compare_metric(metric, columns, gaps)
    systems = {}
    for name in dict.fromkeys(system for metric in names for system in metrics[metric].cv_star):
        rows = [columns for columns in shared.values() if name in columns[0]]
        runs = [[column[name] for column in run] for run in zip(*rows, strict=True)]
        systems[name] = _over_pairs(runs)
    return StudyAgreement(
        metrics,
        systems,
        _finite_mean(agreement.mean_cv_star for agreement in metrics.values()),
        _mean_of([agreement.correlation for agreement in metrics.values()]),
        _mean_of([*systems.values()]),
        _sum([agreement.findings for agreement in metrics.values()]),
        tuple(gaps),
    )


def compare_curves(curves: Sequence[Mapping[int, float]]) -> Correlation:
    """Correlate one metric's values over the steps of n ≥ 2 training runs (type II).

    A curve maps step to value. The correlation is over the `n` steps at which every run has a
    finite value; for more than two runs the mean over pairs of runs.
    """
    steps = sorted(step for step in curves[0] if all(isfinite(c.get(step, nan)) for c in curves))
    return _over_pairs([[curve[step] for step in steps] for curve in curves])


def _compare_metric(
    metric: str, columns: Sequence[Column], gaps: list[Gap]
) -> tuple[list[Column], MetricAgreement]:
    """Compare one metric over systems with a finite value in every run; add `gaps` for others."""
    kept, spread = [], {}
    for system in dict.fromkeys(system for column in columns for system in column):
        reasons = []
        for run, column in enumerate(columns, 1):
            if system not in column:
                reasons.append(f"missing in run {run}")
            elif not isfinite(column[system]):
                reasons.append(f"{column[system]} in run {run}")
        if not reasons:
            kept.append(system)
            values = [column[system] for column in columns]
            spread[system] = nan
            if min(values) < 0 < max(values):
                reasons = ["CV* is undefined for values on both sides of 0"]
            elif not any(values):
                reasons = ["CV* is undefined if all values are 0"]
            else:
                spread[system] = cv_star(values)
        if reasons:
            gaps.append(Gap(metric, system, ", ".join(reasons)))
    shared = [{system: column[system] for system in kept} for column in columns]
    agreement = MetricAgreement(
        spread,
        _finite_mean(spread.values()),
        _over_pairs([list(column.values()) for column in shared], _correlate_systems),
        _sum([findings_upheld(a, b) for a, b in combinations(shared, 2)]),
    )
    return [*shared], agreement


def _correlate_systems(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Correlate the systems' values in two runs; of two systems, by whether they keep their order.

    Two points always lie on a line, so `correlate` leaves them undefined; studies report them.
    """
    if len(first) != 2:
        return correlate(first, second)
    order = float(np.sign(first[0] - first[1]) * np.sign(second[0] - second[1]))
    return Correlation(order or nan, order or nan, 2)


def _over_pairs(
    runs: Sequence[Sequence[float]],
    measure: Callable[[Sequence[float], Sequence[float]], Correlation] = correlate,
) -> Correlation:
    pairs = [measure(a, b) for a, b in combinations(runs, 2)]
    return _mean_of(pairs)._replace(n=len(runs[0]))


def _mean_of(correlations: Sequence[Correlation]) -> Correlation:
    """Return the mean of the defined correlations; `n` is their number."""
    defined = [c for c in correlations if isfinite(c.pearson)]
    pearson = _finite_mean(c.pearson for c in defined)
    spearman = _finite_mean(c.spearman for c in defined)
    return Correlation(pearson, spearman, len(defined))


def _sum(findings: Sequence[Findings]) -> Findings:
    return Findings(sum(f.upheld for f in findings), sum(f.total for f in findings))


def _finite_mean(values: Iterable[float]) -> float:
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else nan
