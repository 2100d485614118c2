"""How far whole tables of results agree: QRA++ by metric and by study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite, nan
from typing import NamedTuple, TypeAlias

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
    """A value that could not be compared, and why."""

    metric: str
    system: str
    reason: str


@dataclass(frozen=True)
class MetricAgreement:
    """How far several runs agree in one metric.

    Attributes:
        cv_star: CV* of each system, per cent; NaN where it has none.
        mean_cv_star: Their mean, NaN left out.
        correlation: Between the systems' values in two runs; of more than two, the mean over
            pairs of runs.
        findings: Pairs of systems of which the same one is ahead.
    """

    cv_star: Mapping[str, float]
    mean_cv_star: float
    correlation: Correlation
    findings: Findings


@dataclass(frozen=True)
class StudyAgreement:
    """How far several runs of a study agree.

    Attributes:
        metrics: Each metric's agreement.
        mean_cv_star: Mean over metrics of their means, per cent; lower is better.
        correlation: Mean over metrics; `n` counts the metrics that have one.
        pooled: Correlation over all values of all metrics at once, which says something only
            where the metrics share a scale.
        findings: Of all metrics together.
        gaps: What was left out.
    """

    metrics: Mapping[str, MetricAgreement]
    mean_cv_star: float
    correlation: Correlation
    pooled: Correlation
    findings: Findings
    gaps: tuple[Gap, ...]


def compare_tables(tables: Sequence[Table]) -> StudyAgreement:
    """Types I, II and IV for the tables of results of n ≥ 2 runs of one study.

    A value that a run lacks or has as NaN is left out everywhere. CV* is left out too where the
    values lie on both sides of 0 or have the mean 0, for it is relative to the mean. Each of
    these is a `Gap`.

    Args:
        tables: Metric → system → value, one table a run.

    Raises:
        ValueError: There are fewer than two tables, or they have no metric in common.
    """
    if len(tables) < 2:
        raise ValueError(f"tables has {len(tables)} item: give the tables of 2 or more runs")
    names = list(dict.fromkeys(metric for table in tables for metric in table))
    if not any(all(metric in table for table in tables) for metric in names):
        raise ValueError(
            f"the runs have no metric in common; run 1 has {', '.join(tables[0]) or 'none'}, "
            f"run 2 has {', '.join(tables[1]) or 'none'}"
        )
    columns = {metric: [table.get(metric, {}) for table in tables] for metric in names}
    shared = {metric: _shared(columns[metric]) for metric in names}
    metrics = {metric: _compare_metric(shared[metric]) for metric in names}
    pooled = [
        [value for metric in names for value in shared[metric][run].values()]
        for run in range(len(tables))
    ]
    return StudyAgreement(
        metrics,
        _mean(agreement.mean_cv_star for agreement in metrics.values()),
        _over_metrics([agreement.correlation for agreement in metrics.values()]),
        _over_pairs(pooled),
        _sum(agreement.findings for agreement in metrics.values()),
        tuple(gap for metric in names for gap in _gaps(metric, columns[metric])),
    )


def compare_curves(curves: Sequence[Mapping[int, float]]) -> Correlation:
    """Type II for one metric's values over the steps of n ≥ 2 training runs.

    Args:
        curves: Step → value, one curve a run.

    Returns:
        Over the steps at which every run has a value, `n` of them; of more than two runs, the
        mean over pairs of runs.
    """
    steps = sorted(step for step in curves[0] if all(isfinite(c.get(step, nan)) for c in curves))
    return _over_pairs([[curve[step] for step in steps] for curve in curves])


def _shared(columns: Sequence[Column]) -> list[Column]:
    """The columns cut to the systems of which every run has a value."""
    kept = [system for system in _systems(columns) if not _lacking(columns, system)]
    return [{system: column[system] for system in kept} for column in columns]


def _gaps(metric: str, columns: Sequence[Column]) -> Iterator[Gap]:
    for system in _systems(columns):
        reason = _lacking(columns, system) or _no_cv_star([c[system] for c in columns])
        if reason:
            yield Gap(metric, system, reason)


def _systems(columns: Sequence[Column]) -> list[str]:
    return list(dict.fromkeys(system for column in columns for system in column))


def _lacking(columns: Sequence[Column], system: str) -> str:
    """Which runs lack a value of the system, in words."""
    reasons = []
    for run, column in enumerate(columns, 1):
        if system not in column:
            reasons.append(f"missing in run {run}")
        elif not isfinite(column[system]):
            reasons.append(f"{column[system]} in run {run}")
    return ", ".join(reasons)


def _compare_metric(columns: Sequence[Column]) -> MetricAgreement:
    values = {system: [column[system] for column in columns] for system in columns[0]}
    spread = {s: nan if _no_cv_star(v) else cv_star(v) for s, v in values.items()}
    return MetricAgreement(
        spread,
        _mean(spread.values()),
        _over_pairs([list(column.values()) for column in columns]),
        _sum(findings_upheld(a, b) for a, b in combinations(columns, 2)),
    )


def _no_cv_star(values: Sequence[float]) -> str:
    if min(values) < 0 < max(values):
        return "values on both sides of 0, so there is no CV*"
    return "" if any(values) else "0 in all runs, so there is no CV*"


def _over_pairs(runs: Sequence[Sequence[float]]) -> Correlation:
    """Of more than two runs, the mean over pairs of runs."""
    found = [correlate(a, b) for a, b in combinations(runs, 2)]
    pearson, spearman = _mean(c.pearson for c in found), _mean(c.spearman for c in found)
    return Correlation(pearson, spearman, len(runs[0]))


def _over_metrics(found: Sequence[Correlation]) -> Correlation:
    told = [c for c in found if isfinite(c.pearson)]
    return Correlation(_mean(c.pearson for c in told), _mean(c.spearman for c in told), len(told))


def _sum(findings: Iterable[Findings]) -> Findings:
    findings = list(findings)
    return Findings(sum(f.upheld for f in findings), sum(f.total for f in findings))


def _mean(values: Iterable[float]) -> float:
    """Mean of those that are not NaN; NaN where all are."""
    finite = [value for value in values if isfinite(value)]
    return sum(finite) / len(finite) if finite else nan
