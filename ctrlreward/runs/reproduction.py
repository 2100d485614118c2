"""How reproducible a result is: agreement of two or more runs by QRA++ (Belz, 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from math import isfinite

from rich.console import Console
from rich.table import Table as RichTable

from ctrlreward.arguments import counted
from ctrlreward.command_line.terminal import number_table
from ctrlreward.files import json_text
from ctrlreward.functional.agreement import Correlation
from ctrlreward.functional.reproducibility import (
    StudyAgreement,
    Table,
    compare_curves,
    compare_tables,
)
from ctrlreward.runs.results import SINGLE_SYSTEM, Run

# How fast a run is says nothing about its result.
_SPEED = ("*_runtime", "*_per_second", "watch/seconds", "*step_time", "*_preparation_time")
_MAX_PRINTED = 20  # gaps of a study; the JSON file has all, and the systems


@dataclass(frozen=True)
class Comparison:
    """Agreement of two or more runs, in the user's order.

    `curves` correlate each metric over the steps that all runs logged; `missing` are studies that
    at least one run lacks.
    """

    runs: Sequence[Run]
    studies: Mapping[str, StudyAgreement]
    curves: Mapping[str, Correlation]
    missing: Sequence[str]


def compare_runs(runs: Sequence[Run], patterns: Sequence[str] = ("*",)) -> Comparison:
    """Compare runs study by study and curve by curve."""
    all_studies = list(dict.fromkeys(study for run in runs for study in run.studies))
    shared = [study for study in all_studies if all(study in run.studies for run in runs)]
    if not shared:
        raise ValueError(f"the runs have no study in common, only {', '.join(all_studies)}")
    studies = {
        study: compare_tables([_matching(run.studies[study], patterns) for run in runs])
        for study in shared
    }
    metrics = dict.fromkeys(metric for study in shared for metric in studies[study].metrics)
    curves = {
        metric: compare_curves([run.curves[metric] for run in runs])
        for metric in metrics
        if all(metric in run.curves for run in runs)
    }
    return Comparison(runs, studies, curves, [s for s in all_studies if s not in shared])


def to_json(comparison: Comparison) -> str:
    """Encode a comparison as JSON; NaN is null."""
    studies = {study: asdict(agreement) for study, agreement in comparison.studies.items()}
    for study in studies.values():
        for part in (study, *study["metrics"].values()):
            part["findings"] = {**part["findings"]._asdict(), "share": part["findings"].share}
    content = {
        "runs": [run.name for run in comparison.runs],
        "studies": studies,
        "curves": comparison.curves,
        "missing_studies": list(comparison.missing),
    }
    return json_text(content)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the runs, a table and a summary of each study, and the studies left out, unwrapped."""
    for number, run in enumerate(comparison.runs, 1):
        console.print(f"run {number}: {run.name}", soft_wrap=True)
    for study, agreement in comparison.studies.items():
        console.print()
        console.print(_metric_table(study, agreement, comparison))
        for line in _summary_lines(agreement, len(comparison.runs)):
            console.print(line, soft_wrap=True)
    for study in comparison.missing:
        console.print(f"study {study!r} is not in all runs: left out", soft_wrap=True)


def _metric_table(study: str, agreement: StudyAgreement, comparison: Comparison) -> RichTable:
    several = len(agreement.systems) > 1
    headings = ["systems"] if several else [f"run {i + 1}" for i in range(len(comparison.runs))]
    headings += ["CV* %"]
    headings += ["Pearson", "Spearman", "findings upheld"] if several else []
    headings += ["Pearson", "Spearman", "common steps"] if comparison.curves else []
    title = study or None
    table = number_table(["metric"], headings, title=title, title_justify="left", show_edge=False)
    for metric, values in agreement.metrics.items():
        if several:
            cells = [str(len(values.cv_star))]
        else:  # the values of the only system that all runs have
            columns = [run.studies[study].get(metric, {}) for run in comparison.runs]
            shared = next(iter(agreement.systems), "")
            cells = [f"{column[shared]:.4g}" if shared in column else "–" for column in columns]
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


def _summary_lines(agreement: StudyAgreement, runs: int) -> Iterator[str]:
    comparable = sum(isfinite(values.mean_cv_star) for values in agreement.metrics.values())
    yield ""
    about = "for two runs, about their difference" if runs == 2 else "about their deviation"
    yield (
        f"CV* (type I): {_number(agreement.mean_cv_star)} %, "
        f"mean of {counted(comparable, 'metric')}; {about} in percent of their mean"
    )
    if len(agreement.systems) > 1:
        over = counted(agreement.correlation.n, "metric")
        pearson, spearman = _correlation(agreement.correlation)
        yield f"correlation (type II): Pearson {pearson}, Spearman {spearman}, mean of {over}"
        if any(values.correlation.n == 2 for values in agreement.metrics.values()):
            yield "  of two systems, 1 if they keep their order and -1 if they swap"
    findings = agreement.findings
    if findings.total:
        yield (
            "findings (type IV): "
            f"{findings.upheld} of {counted(findings.total, 'pair')} of systems in the same order "
            f"({100 * findings.share:.1f} %)"
        )
    else:
        why = "no metric has values of two systems in all runs"
        why = "the runs share only one system" if len(agreement.systems) == 1 else why
        yield f"findings (type IV): none, because {why}"
    if agreement.gaps:
        yield "left out:"
    for gap in agreement.gaps[:_MAX_PRINTED]:
        of = "" if gap.system == SINGLE_SYSTEM else f" of {gap.system}"
        yield f"  {gap.metric}{of}: {gap.reason}"
    if len(agreement.gaps) > _MAX_PRINTED:
        yield f"  and {len(agreement.gaps) - _MAX_PRINTED} more: --output FILE.json lists all"


def _correlation(correlation: Correlation) -> tuple[str, str]:
    return _number(correlation.pearson), _number(correlation.spearman)


def _number(value: float) -> str:
    return f"{value:.2f}" if isfinite(value) else "–"


def _matching(table: Table, patterns: Sequence[str]) -> Table:
    kept = {m: c for m, c in table.items() if any(fnmatchcase(m, p) for p in patterns)}
    if "*" in patterns:
        kept = {m: c for m, c in kept.items() if not any(fnmatchcase(m, p) for p in _SPEED)} or kept
    if not kept:
        raise ValueError(f"no metric matches {' or '.join(patterns)}: there are {', '.join(table)}")
    return kept
