"""How reproducible a result is: agreement of two or more runs by QRA++ (Belz, 2025)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from ctrlreward.arguments import counted, kind_of
from ctrlreward.command_line.terminal import number_table
from ctrlreward.files import json_text, read_json
from ctrlreward.functional.reproducibility import (
    Correlation,
    StudyAgreement,
    Table,
    compare_curves,
    compare_tables,
)
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.logs import LoggedStep, csv_history, numbers_of
from ctrlreward.tables.columns import number_of
from ctrlreward.tables.rows import CsvRow, decode_utf8, no_such_file, parse_csv, read_bytes

SINGLE_SYSTEM = "run"  # name of the system if the results do not name one

_SELECTION = re.compile(r"(?P<file>.+\.csv):(?P<cells>[^/\\=]+=[^=]*(?:,[^/\\=]+=[^=]*)*)")
_STUDY = "study"
# How fast a run is says nothing about its result.
_SPEED = ("*_runtime", "*_per_second", "watch/seconds", "*step_time", "*_preparation_time")
_MAX_PRINTED = 20  # gaps of a study; the JSON file has all, and the systems


@dataclass(frozen=True)
class Run:
    """Results of one run.

    `studies` maps study → metric → system → value; a logged run is one study with one system and
    its last values. `curves` maps metric → step → value, and is empty if the run has no steps.
    """

    name: str
    studies: Mapping[str, Table]
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


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


# Reading


def read_run(
    name: str,
    system_columns: Sequence[str] = ("system",),
    metric_columns: Sequence[str] = ("metric",),
) -> Run:
    """Read a CSV or JSON file, or the folder of a run with the `summary.json` of `BeforeAfter`.

    Args:
        name: A path. `FILE.csv:column=value,…` selects the rows with these values.
        system_columns: Columns of a CSV file that together name the system of a row.
        metric_columns: Columns of a long CSV file that together name the metric of a row.
    """
    path, selected = Path(name), dict[str, str]()
    match = _SELECTION.fullmatch(name)
    if match and not path.exists():
        path = Path(match["file"])
        pairs = (cell.split("=", 1) for cell in match["cells"].split(","))
        selected = {column.strip(): value.strip() for column, value in pairs}
    if path.is_dir():
        stored = read_stored_run(path)
        run = _logged_run(name, ((each.step, each.metrics) for each in stored.steps))
        return Run(name, {"": {**run.studies[""], **_of_report(stored.summary)}}, run.curves)
    if not path.is_file():
        raise no_such_file(path)
    if path.suffix == ".json":
        return Run(name, {"": _json_table(path)})
    if path.suffix != ".csv":
        raise ValueError(
            f"{name} must be a .csv or .json file, or a logger's folder, got {path.suffix!r}"
        )
    header, rows = parse_csv(decode_utf8(read_bytes(path), path), path)
    _require(path, header, selected)
    rows = [(n, row) for n, row in rows if all(row[c] == v for c, v in selected.items())]
    if not rows:
        condition = ", ".join(f"{column} = {value}" for column, value in selected.items())
        where = f"with {condition}" if condition else "below the header"
        raise ValueError(f"{path} has no rows {where}")
    if "step" in header and not {*header} & {"value", *system_columns}:
        return _logged_run(name, csv_history(path, rows))
    return Run(name, _studies(path, header, rows, system_columns, metric_columns))


def _logged_run(name: str, history: Iterable[LoggedStep]) -> Run:
    """Return the curves of all metrics, and their last values as the results."""
    curves: dict[str, dict[int, float]] = {}
    for step, metrics in history:
        for metric, value in metrics.items():
            curves.setdefault(metric, {})[step] = value
    if not curves:
        raise ValueError(f"{name} has no logged numbers: did the run reach its first step?")
    last = {metric: {SINGLE_SYSTEM: [*curve.values()][-1]} for metric, curve in curves.items()}
    return Run(name, {"": last}, curves)


def _of_report(summary: Mapping[str, Any]) -> Table:
    """Return what `BeforeAfter` measured of the selected policy on held-out prompts."""
    values = {f"after/{k}": v for k, v in summary.get("after", {}).items() if k != "generations"}
    if "difference" in summary:
        values["difference"] = summary["difference"]
    values |= {f"judges/{k}": judge["after"] for k, judge in summary.get("judges", {}).items()}
    return {metric: {SINGLE_SYSTEM: value} for metric, value in numbers_of(values).items()}


def _json_table(path: Path) -> Table:
    """Read `{system: {metric: value}}`, or `{metric: value}` of a single system."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} contains {kind_of(content)}, must be a JSON object")
    several = content and all(isinstance(value, dict) for value in content.values())
    table: dict[str, dict[str, float]] = {}
    for system, metrics in content.items() if several else [(SINGLE_SYSTEM, content)]:
        for metric, value in metrics.items():
            if isinstance(value, bool | str | list | dict):
                raise ValueError(
                    f"{path}: {metric} = {value!r} is not a number, must be "
                    "{system: {metric: value}} or {metric: value}"
                )
            table.setdefault(metric, {})[system] = number_of(value, f"{path}: {metric}")
    return table


def _studies(
    path: Path,
    header: Sequence[str],
    rows: Sequence[CsvRow],
    system_columns: Sequence[str],
    metric_columns: Sequence[str],
) -> Mapping[str, Table]:
    """Return study → metric → system → value.

    A file with a column `value` is long: each row is one value. In any other file each row is one
    system, and each column that names neither system nor study is a metric. Without the column
    `system`, its default, the system is `SINGLE_SYSTEM`.
    """
    if tuple(system_columns) == ("system",) and "system" not in header:
        system_columns = ()
    is_long = "value" in header
    _require(path, header, [*system_columns, *(metric_columns if is_long else ())])
    metrics = [column for column in header if column not in (*system_columns, _STUDY)]
    studies: dict[str, dict[str, dict[str, float]]] = {}
    lines: dict[tuple[str, str, str], int] = {}
    for line, row in rows:
        study = row.get(_STUDY, "")
        system = " ".join(row[column] for column in system_columns) or SINGLE_SYSTEM
        for column in ["value"] if is_long else metrics:
            metric = " ".join(row[c] for c in metric_columns) if is_long else column
            first = lines.setdefault((study, metric, system), line)
            if first != line:
                raise ValueError(
                    f"{path}:{line} repeats {metric!r} of {system!r} from line {first}. Name the "
                    f"columns that distinguish them with --system_columns or --metric_columns (of "
                    f"{', '.join(header)}), or select rows with {path}:column=value."
                )
            value = number_of(row[column], f"{path}:{line}: {column}")
            studies.setdefault(study, {}).setdefault(metric, {})[system] = value
    return studies


def _require(path: Path, header: Sequence[str], columns: Iterable[str]) -> None:
    for column in columns:
        if column not in header:
            raise ValueError(f"{path} has no column {column!r}, only {', '.join(header)}")


# Comparing


def compare_runs(runs: Sequence[Run], patterns: Sequence[str] = ("*",)) -> Comparison:
    """Compare runs study by study and curve by curve; a metric counts if it matches a pattern."""
    all_studies = list(dict.fromkeys(study for run in runs for study in run.studies))
    shared = [study for study in all_studies if all(study in run.studies for run in runs)]
    if not shared:
        raise ValueError(f"the runs have no study in common, only {', '.join(all_studies)}")
    studies = {
        study: compare_tables([_matching(run.studies[study], patterns) for run in runs])
        for study in shared
    }
    curves = {
        metric: compare_curves([run.curves[metric] for run in runs])
        for study in shared
        for metric in studies[study].metrics
        if all(metric in run.curves for run in runs)
    }
    return Comparison(runs, studies, curves, [s for s in all_studies if s not in shared])


def _matching(table: Table, patterns: Sequence[str]) -> Table:
    kept = {m: c for m, c in table.items() if any(fnmatchcase(m, p) for p in patterns)}
    if "*" in patterns:
        kept = {m: c for m, c in kept.items() if not any(fnmatchcase(m, p) for p in _SPEED)} or kept
    if not kept:
        raise ValueError(f"no metric matches {' or '.join(patterns)}: there are {', '.join(table)}")
    return kept


# Output


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
            upheld, total = values.findings
            found = f"{upheld} of {total}" if total else "–"
            cells = [str(len(values.cv_star)), _number(values.mean_cv_star)]
            cells += [*_correlation(values.correlation), found]
        else:  # the values of the only system that all runs have
            columns = [run.studies[study].get(metric, {}) for run in comparison.runs]
            shared = next(iter(agreement.systems), "")
            cells = [f"{column[shared]:.4g}" if shared in column else "–" for column in columns]
            cells += [_number(values.mean_cv_star)]
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
