"""Comparison of runs, printed as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from rich.console import Console, RenderableType
from rich.table import Table as RichTable

from ctrlreward.functional.agreement import Correlation
from ctrlreward.functional.reproducibility import Gap, StudyAgreement
from ctrlreward.tables.csv_results import SINGLE_SYSTEM
from ctrlreward.tables.runs import Run

# Gaps and systems printed per study; the JSON file has all.
_MAX_GAPS = 20
_MAX_SYSTEMS = 20


@dataclass(frozen=True)
class Comparison:
    """Agreement of two or more runs.

    Attributes:
        runs: The runs, in the user's order.
        studies: Agreement in each study that all runs have.
        curves: Correlation of each metric over the steps that all runs logged; empty if a run has
            no steps.
        missing: Studies that at least one run lacks.
    """

    runs: Sequence[Run]
    studies: Mapping[str, StudyAgreement]
    curves: Mapping[str, Correlation]
    missing: Sequence[str]


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the runs, then a table and a summary of each study, then the studies left out."""
    for number, run in enumerate(comparison.runs, 1):
        _print_line(console, f"run {number}: {run.name}")
    for study, agreement in comparison.studies.items():
        console.print()
        console.print(_metric_table(study, agreement, comparison))
        if agreement.system_correlation.n:
            console.print()
            console.print(_system_table(agreement))
        for line in _summary_lines(agreement, len(comparison.runs)):
            _print_line(console, line)
    for study in comparison.missing:
        _print_line(console, f"study {study!r} is not in all runs: left out")


def _print_line(console: Console, line: str) -> None:
    """Print without wrapping, so that output piped to a file keeps its lines."""
    console.print(line, soft_wrap=True)


def _metric_table(study: str, agreement: StudyAgreement, comparison: Comparison) -> RenderableType:
    several = _several_systems(agreement)
    table = RichTable(title=study or None, title_justify="left", show_edge=False)
    table.add_column("metric", overflow="fold")
    headings = ["systems"] if several else [f"run {i + 1}" for i in range(len(comparison.runs))]
    headings += ["CV* %"]
    headings += ["Pearson", "Spearman", "findings upheld"] if several else []
    headings += ["Pearson", "Spearman", "common steps"] if comparison.curves else []
    for name in headings:
        table.add_column(name, justify="right")
    for metric, values in agreement.metrics.items():
        cells = [str(len(values.cv_star))] if several else _values(study, metric, comparison.runs)
        cells += [_number(values.mean_cv_star)]
        if several:
            cells += [*_correlation(values.correlation)]
            upheld, total = values.findings
            cells += [f"{upheld} of {total}" if total else "–"]
        if metric in comparison.curves:
            curve = comparison.curves[metric]
            cells += [*_correlation(curve), str(curve.n)]
        table.add_row(metric, *cells)
    return table


def _system_table(agreement: StudyAgreement) -> RenderableType:
    """Return a table of the first systems, over the metrics that all runs have of them."""
    table = RichTable(show_edge=False)
    table.add_column("system", overflow="fold")
    for heading in ("metrics", "CV* %", "Pearson", "Spearman"):
        table.add_column(heading, justify="right")
    for name, values in list(agreement.systems.items())[:_MAX_SYSTEMS]:
        cells = (str(values.correlation.n), _number(values.mean_cv_star))
        table.add_row(name, *cells, *_correlation(values.correlation))
    return table


def _summary_lines(agreement: StudyAgreement, runs: int) -> Iterator[str]:
    comparable = sum(isfinite(values.mean_cv_star) for values in agreement.metrics.values())
    yield ""
    yield (
        f"CV* (type I): {_number(agreement.mean_cv_star)} %, mean of {comparable} metrics"
        + ("; for two runs, about their difference in percent of their mean" if runs == 2 else "")
    )
    if _several_systems(agreement):
        yield from _correlation_lines(agreement)
        findings = agreement.findings
        yield (
            f"findings (type IV): {findings.upheld} of {findings.total} pairs of systems are in "
            f"the same order ({100 * findings.share:.1f} %)"
            if findings.total
            else "findings (type IV): none, because no metric has values of two systems in all runs"
        )
    else:
        yield "findings (type IV): none, because each run has only one system"
    if agreement.gaps:
        yield "left out:"
        yield from (_gap(gap) for gap in agreement.gaps[:_MAX_GAPS])
    if len(agreement.gaps) > _MAX_GAPS:
        yield f"  and {len(agreement.gaps) - _MAX_GAPS} more: --output FILE.json lists all"


def _correlation_lines(agreement: StudyAgreement) -> Iterator[str]:
    """Yield the correlation by metric, by system and over all values at once."""
    metrics, systems = agreement.correlation, agreement.system_correlation
    yield _correlation_line(metrics, f"mean of {metrics.n} metrics")
    if systems.n:
        yield _correlation_line(systems, f"mean of {systems.n} systems")
    if len(agreement.metrics) > 1:
        yield _correlation_line(agreement.pooled, f"of all {agreement.pooled.n} values at once")
    if any(values.correlation.n == 2 for values in agreement.metrics.values()):
        yield "  a metric of two systems counts as 1 if they keep their order, as -1 if they swap"
    if len(agreement.metrics) > 1:
        yield "  by system and at once, metrics on different scales bring the correlation near 1"
    if systems.n and len(agreement.systems) > _MAX_SYSTEMS:
        rest = len(agreement.systems) - _MAX_SYSTEMS
        yield f"  and {rest} more systems: --output FILE.json lists all"


def _correlation_line(values: Correlation, over: str) -> str:
    pearson, spearman = _correlation(values)
    return f"correlation (type II): Pearson {pearson}, Spearman {spearman}, {over}"


def _several_systems(agreement: StudyAgreement) -> bool:
    return len(agreement.systems) > 1


def _values(study: str, metric: str, runs: Sequence[Run]) -> list[str]:
    """Return the only system's value in each run."""
    columns = [run.studies[study].get(metric, {}) for run in runs]
    return [next((f"{value:.4g}" for value in column.values()), "–") for column in columns]


def _gap(gap: Gap) -> str:
    system = "" if gap.system == SINGLE_SYSTEM else f" of {gap.system}"
    return f"  {gap.metric}{system}: {gap.reason}"


def _correlation(correlation: Correlation) -> tuple[str, str]:
    return _number(correlation.pearson), _number(correlation.spearman)


def _number(value: float) -> str:
    return f"{value:.2f}" if isfinite(value) else "–"
