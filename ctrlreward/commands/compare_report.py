"""A comparison of runs, in words and tables for the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from rich.console import Console, RenderableType
from rich.table import Table as RichTable

from ctrlreward.commands.formats.runs import Run
from ctrlreward.functional.agreement import Correlation
from ctrlreward.functional.reproducibility import Gap, StudyAgreement

# So many are printed; the JSON file has all.
_GAPS = 20


@dataclass(frozen=True)
class Comparison:
    """What is said of several runs.

    Attributes:
        runs: As they were read.
        studies: Agreement in each study that all runs have.
        curves: Correlation of each metric over the steps of all runs, where they have steps.
        missing: Studies that a run lacks.
    """

    runs: Sequence[Run]
    studies: Mapping[str, StudyAgreement]
    curves: Mapping[str, Correlation]
    missing: Sequence[str]


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Prints the runs, a table for each study, what they say, and what was left out."""
    for number, run in enumerate(comparison.runs, 1):
        _say(console, f"run {number}: {run.name}")
    for study, agreement in comparison.studies.items():
        console.print()
        console.print(_metric_table(study, agreement, comparison))
        for line in _summary(agreement, len(comparison.runs)):
            _say(console, line)
    for study in comparison.missing:
        _say(console, f"study {study!r} is not in all runs: left out")


def _say(console: Console, line: str) -> None:
    """A line as it is: what is piped into a file is not to be wrapped."""
    console.print(line, soft_wrap=True)


def _metric_table(study: str, agreement: StudyAgreement, comparison: Comparison) -> RenderableType:
    several = _several_systems(agreement)
    table = RichTable(title=study or None, title_justify="left", show_edge=False)
    table.add_column("metric", overflow="fold")
    numbers = ["systems"] if several else [f"run {i + 1}" for i in range(len(comparison.runs))]
    numbers += ["CV* %"]
    numbers += ["Pearson", "Spearman", "findings upheld"] if several else []
    numbers += ["Pearson", "Spearman", "common steps"] if comparison.curves else []
    for name in numbers:
        table.add_column(name, justify="right")
    for metric, found in agreement.metrics.items():
        cells = [str(len(found.cv_star))] if several else _values(study, metric, comparison.runs)
        cells += [_number(found.mean_cv_star)]
        if several:
            cells += [*_correlation(found.correlation)]
            upheld, total = found.findings
            cells += [f"{upheld} of {total}" if total else "–"]
        if metric in comparison.curves:
            curve = comparison.curves[metric]
            cells += [*_correlation(curve), str(curve.n)]
        table.add_row(metric, *cells)
    return table


def _summary(agreement: StudyAgreement, runs: int) -> Iterator[str]:
    told = sum(isfinite(found.mean_cv_star) for found in agreement.metrics.values())
    yield ""
    yield (
        f"CV* (type I): {_number(agreement.mean_cv_star)} %, mean of {told} metrics"
        + ("; of two runs, about their difference in per cent of their mean" if runs == 2 else "")
    )
    if _several_systems(agreement):
        pearson, spearman = _correlation(agreement.correlation)
        yield (
            f"correlation (type II): Pearson {pearson}, Spearman {spearman}, mean of "
            f"{agreement.correlation.n} metrics"
        )
        findings = agreement.findings
        yield (
            f"findings (type IV): {findings.upheld} of {findings.total} pairs of systems have the "
            f"same one ahead ({100 * findings.share:.1f} %)"
            if findings.total
            else "findings (type IV): none, for no metric has two systems with values in all runs"
        )
    else:
        yield "findings (type IV): none, for they compare systems, and each run has one"
    if agreement.gaps:
        yield "left out:"
        yield from (_gap(gap) for gap in agreement.gaps[:_GAPS])
    if len(agreement.gaps) > _GAPS:
        yield f"  and {len(agreement.gaps) - _GAPS} more: --output FILE.json lists all"


def _several_systems(agreement: StudyAgreement) -> bool:
    systems = {system for found in agreement.metrics.values() for system in found.cv_star}
    return len(systems) > 1


def _values(study: str, metric: str, runs: Sequence[Run]) -> list[str]:
    """The only system's value in each run."""
    columns = [run.studies[study].get(metric, {}) for run in runs]
    return [next((f"{value:.4g}" for value in column.values()), "–") for column in columns]


def _gap(gap: Gap) -> str:
    of = "" if gap.system == "run" else f" of {gap.system}"
    return f"  {gap.metric}{of}: {gap.reason}"


def _correlation(correlation: Correlation) -> tuple[str, str]:
    return _number(correlation.pearson), _number(correlation.spearman)


def _number(value: float) -> str:
    return f"{value:.2f}" if isfinite(value) else "–"
