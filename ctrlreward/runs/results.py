"""Results of a run, read from a table of results or from the folder of a logger.

A table is long (one value per row) or wide (one system per row).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any

from ctrlreward.arguments import kind_of
from ctrlreward.files import parse_json
from ctrlreward.functional.reproducibility import Table
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.logs import LoggedStep, NoLog, csv_history, numbers_of, read_log
from ctrlreward.tables.columns import number_of
from ctrlreward.tables.rows import CsvRow, decode_utf8, no_such_file, parse_csv

SINGLE_SYSTEM = "run"  # name of the system if the results do not name one

_SELECTION = re.compile(r"(?P<file>.+\.csv):(?P<cells>[^/\\=]+=[^=]*(?:,[^/\\=]+=[^=]*)*)")
_STUDY = "study"


@dataclass(frozen=True)
class Run:
    """Results of one run.

    `studies` maps study → metric → system → value; a logged run is one study with one system and
    its last values. `curves` maps metric → step → value, and is empty if the run has no steps.
    """

    name: str
    studies: Mapping[str, Table]
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


def read_run(
    name: str,
    system_columns: Sequence[str] = ("system",),
    metric_columns: Sequence[str] = ("metric",),
) -> Run:
    """Read a CSV or JSON file, or a folder.

    The folder is of a run that `read_log` reads, with the `summary.json` of `BeforeAfter` if it
    exists, or has the stored texts of a run alone.

    Args:
        name: A path. `FILE.csv:column=value,…` selects the rows with these values.
        system_columns: Columns of a CSV file that together name the system of a row.
        metric_columns: Columns of a long CSV file that together name the metric of a row.
    """
    path, selection = _split_selection(name)
    if path.is_dir():
        return _read_folder(name, path)
    if not path.is_file():
        raise no_such_file(path)
    if path.suffix == ".json":
        return Run(name, {"": _read_json_table(path)})
    if path.suffix != ".csv":
        raise ValueError(
            f"{name} must be a .csv or .json file, or a logger's folder, got {path.suffix!r}"
        )
    header, rows = _read_selected_rows(path, selection)
    if "step" in header and not set(header) & {"value", *system_columns}:
        return _logged_run(name, csv_history(path, rows))
    return Run(name, _to_studies(path, header, rows, system_columns, metric_columns))


def _read_folder(name: str, folder: Path) -> Run:
    summary = folder / "files" / "wandb-summary.json"
    if summary.is_file() and not any(folder.glob("*.wandb")):
        return Run(name, {"": _single_system(numbers_of(_read_json_object(summary)))})
    try:
        log = read_log(folder)
    except NoLog:  # texts alone
        steps = read_stored_run(folder).steps
        return _logged_run(name, [(each.step, each.metrics) for each in steps])
    return _with_report(_logged_run(name, log.rows), log.path.with_name("summary.json"))


def _logged_run(name: str, history: Iterable[LoggedStep]) -> Run:
    """Return the curves of all metrics, and their last values as the results."""
    curves: dict[str, dict[int, float]] = {}
    last: dict[str, float] = {}
    for step, metrics in history:
        for metric, value in metrics.items():
            curves.setdefault(metric, {})[step] = value
            last[metric] = value
    if not last:
        raise ValueError(f"{name} has no logged numbers: did the run reach its first step?")
    return Run(name, {"": _single_system(last)}, curves)


def _with_report(run: Run, summary: Path) -> Run:
    """Add the report of `BeforeAfter`: scores of the selected policy on held-out prompts."""
    report = _read_json_object(summary) if summary.is_file() else {}
    values = {f"after/{k}": v for k, v in report.get("after", {}).items() if k != "generations"}
    if "difference" in report:
        values["difference"] = report["difference"]
    values |= {f"judges/{k}": judge["after"] for k, judge in report.get("judges", {}).items()}
    measured = _single_system(numbers_of(values))
    return replace(run, studies={"": {**run.studies[""], **measured}})


def _single_system(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    return {metric: {SINGLE_SYSTEM: value} for metric, value in metrics.items()}


def _read_json_table(path: Path) -> Table:
    """Read `{system: {metric: value}}`, or `{metric: value}` of a single system."""
    content = _read_json_object(path)
    systems = {SINGLE_SYSTEM: content}
    if content and all(isinstance(value, dict) for value in content.values()):
        systems = content
    table: dict[str, dict[str, float]] = {}
    for system, metrics in systems.items():
        for metric, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise ValueError(
                    f"{path}: {metric} = {value!r} is not a number, must be "
                    "{system: {metric: value}} or {metric: value}"
                )
            table.setdefault(metric, {})[system] = nan if value is None else float(value)
    return table


def _read_json_object(path: Path) -> dict[str, Any]:
    content = parse_json(decode_utf8(path.read_bytes(), path), path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} contains {kind_of(content)}, must be a JSON object")
    return content


def _split_selection(name: str) -> tuple[Path, dict[str, str]]:
    """Split `FILE.csv:column=value,…` into the path and the values of the rows to keep."""
    match = _SELECTION.fullmatch(name)
    if match is None or Path(name).exists():
        return Path(name), {}
    cells = (cell.split("=", 1) for cell in match["cells"].split(","))
    return Path(match["file"]), {column.strip(): value.strip() for column, value in cells}


def _read_selected_rows(path: Path, selection: Mapping[str, str]) -> tuple[list[str], list[CsvRow]]:
    """Read the header of a CSV file and the rows that have the selected values, by column."""
    header, rows = parse_csv(decode_utf8(path.read_bytes(), path), path)
    for column in selection:
        _require_column(path, header, column)
    kept = [(n, row) for n, row in rows if all(row[c] == v for c, v in selection.items())]
    if not kept:
        condition = ", ".join(f"{column} = {value}" for column, value in selection.items())
        where = f"with {condition}" if condition else "below the header"
        raise ValueError(f"{path} has no rows {where}")
    return header, kept


def _to_studies(
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
    for column in (*system_columns, *(metric_columns if is_long else ())):
        _require_column(path, header, column)
    studies: dict[str, dict[str, dict[str, float]]] = {}
    lines: dict[tuple[str, str, str], int] = {}
    for line, row in rows:
        study = row.get(_STUDY, "")
        system = " ".join(row[column] for column in system_columns) or SINGLE_SYSTEM
        columns = ["value"] if is_long else [c for c in row if c not in (*system_columns, _STUDY)]
        for column in columns:
            metric = " ".join(row[c] for c in metric_columns) if is_long else column
            value = number_of(row[column], f"{path}:{line}: {column}")
            first = lines.setdefault((study, metric, system), line)
            if first != line:
                raise ValueError(
                    f"{path}:{line} repeats {metric!r} of {system!r} from line {first}. Name the "
                    f"columns that distinguish them with --system_columns or --metric_columns (of "
                    f"{', '.join(header)}), or select rows with {path}:column=value."
                )
            studies.setdefault(study, {}).setdefault(metric, {})[system] = value
    return studies


def _require_column(path: Path, header: Sequence[str], column: str) -> None:
    if column not in header:
        raise ValueError(f"{path} has no column {column!r}, only {', '.join(header)}")
