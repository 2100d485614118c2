"""Reproducibility of whole tables of results: QRA++ by metric, by system and by study.

The measures are in `agreement` (Belz, 2025, https://arxiv.org/abs/2505.17043).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite, nan
from typing import NamedTuple, TypeAlias

import numpy as np

from ctrlreward.functional.agreement import (
    Correlation,
    Findings,
    correlate,
    cv_star,
    findings_upheld,
)

Column: TypeAlias = Mapping[str, float]  # system → value
Table: TypeAlias = Mapping[str, Column]  # metric → system → value


class Gap(NamedTuple):
    """A value that was left out of a comparison, and the reason in words.

    Examples:
        >>> compare_tables([{"sim": {"A": 0.5, "B": 0.6}}, {"sim": {"A": 0.5}}]).gaps
        (Gap(metric='sim', system='B', reason='missing in run 2'),)
    """

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

    Examples:
        >>> study = compare_tables([{"sim": {"A": 0.5, "B": 0.9}}, {"sim": {"A": 0.5, "B": 1.1}}])
        >>> study.metrics["sim"].findings
        Findings(upheld=1, total=1)
    """

    cv_star: Mapping[str, float]
    mean_cv_star: float
    correlation: Correlation
    findings: Findings


@dataclass(frozen=True)
class SystemAgreement:
    """Agreement of several runs in one system.

    Attributes:
        mean_cv_star: Mean CV* over metrics, per cent, lower is better; NaN where undefined.
        correlation: Correlation of the system's values over metrics, as in `MetricAgreement`. NaN
            for fewer than three metrics. Metrics on different scales raise it.

    Examples:
        >>> run = {"sim": {"A": 0.7}, "accuracy": {"A": 0.9}, "perplexity": {"A": 40.0}}
        >>> compare_tables([run, run]).systems["A"].mean_cv_star
        0.0
    """

    mean_cv_star: float
    correlation: Correlation


@dataclass(frozen=True)
class StudyAgreement:
    """Agreement of several runs of one study.

    Attributes:
        metrics: Agreement in each metric.
        systems: Agreement in each system that all runs have in some metric.
        mean_cv_star: Mean of the metrics' mean CV*, per cent; lower is better.
        correlation: Mean over metrics; `n` is the number of metrics with a correlation.
        system_correlation: Mean over systems; `n` is the number of systems with a correlation.
        findings: Findings of all metrics together.
        gaps: Values left out.

    Examples:
        >>> compare_tables([{"sim": {"A": 0.5, "B": 0.6}}] * 2).findings.share
        1.0
    """

    metrics: Mapping[str, MetricAgreement]
    systems: Mapping[str, SystemAgreement]
    mean_cv_star: float
    correlation: Correlation
    system_correlation: Correlation
    findings: Findings
    gaps: tuple[Gap, ...]


def compare_tables(tables: Sequence[Table]) -> StudyAgreement:
    """Compare the tables of n ≥ 2 runs of one study by types I, II and IV of QRA++.

    A system whose value is missing or not finite in one run is left out of the metric for all runs.
    CV* is also left out for values on both sides of 0 and for values that are all 0. Each omission
    is reported as a `Gap`.

    Raises:
        ValueError: `tables` has fewer than two, or they have no metric or no system in common.

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
            first, second = (", ".join(each)[:300] or "none" for each in named[:2])
            raise ValueError(
                f"the runs have no {kind} in common. Run 1 has {first}, run 2 has {second}. "
                "Pass runs of the same study."
            )
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
        spread = [a.cv_star[name] for a in metrics.values() if name in a.cv_star]
        systems[name] = SystemAgreement(_finite_mean(spread), _over_pairs(runs))
    return StudyAgreement(
        metrics,
        systems,
        _finite_mean(agreement.mean_cv_star for agreement in metrics.values()),
        _mean_of([agreement.correlation for agreement in metrics.values()]),
        _mean_of([agreement.correlation for agreement in systems.values()]),
        _sum(agreement.findings for agreement in metrics.values()),
        tuple(gaps),
    )


def compare_curves(curves: Sequence[Mapping[int, float]]) -> Correlation:
    """Correlate one metric's values over the steps of n ≥ 2 training runs (type II).

    A curve maps step to value. The correlation is over the `n` steps at which every run has a
    finite value; for more than two runs the mean over pairs of runs.

    Examples:
        >>> compare_curves([{0: 0.1, 10: 0.2, 20: 0.3, 30: 0.4}, {0: 0.1, 10: 0.3, 20: 0.2}]).n
        3
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
        _sum(findings_upheld(a, b) for a, b in combinations(shared, 2)),
    )
    return [*shared], agreement


def _correlate_systems(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Correlate the systems' values in two runs.

    For two systems this is 1 if they keep their order, -1 if they swap and NaN in a tie. Two points
    always lie on a line, so `correlate` leaves them undefined; studies of two systems report them.
    """
    if len(first) != 2:
        return correlate(first, second)
    order = float(np.sign(first[0] - first[1]) * np.sign(second[0] - second[1]))
    return Correlation(order or nan, order or nan, 2)


def _over_pairs(
    runs: Sequence[Sequence[float]],
    measure: Callable[[Sequence[float], Sequence[float]], Correlation] = correlate,
) -> Correlation:
    """Return the mean correlation over pairs of runs."""
    pairs = [measure(a, b) for a, b in combinations(runs, 2)]
    return _mean_of(pairs)._replace(n=len(runs[0]))


def _mean_of(correlations: Sequence[Correlation]) -> Correlation:
    """Return the mean of the defined correlations; `n` is their number."""
    defined = [c for c in correlations if isfinite(c.pearson)]
    pearson = _finite_mean(c.pearson for c in defined)
    spearman = _finite_mean(c.spearman for c in defined)
    return Correlation(pearson, spearman, len(defined))


def _sum(findings: Iterable[Findings]) -> Findings:
    findings = list(findings)
    return Findings(sum(f.upheld for f in findings), sum(f.total for f in findings))


def _finite_mean(values: Iterable[float]) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else nan
