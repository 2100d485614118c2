"""What a run left behind, as numbers: a table of results, or the folder of a logger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any, TypeAlias

from ctrlreward.commands.formats import csv_results
from ctrlreward.commands.formats.parsing import CsvRow, decode, parse_json
from ctrlreward.commands.formats.wandb_file import read_wandb_history
from ctrlreward.files import JsonLog
from ctrlreward.functional.reproducibility import Table

# One call of a logger: its step and what was logged.
Row: TypeAlias = tuple[int, Mapping[str, float]]

# Loggers put these beside the metrics.
_STEPS = ("trainer/global_step", "step", "_step")
_BOOKKEEPING = {*_STEPS, "epoch"}
# The system of a run that is itself what is measured.
_ITSELF = "run"


@dataclass(frozen=True)
class Run:
    """The results of one run.

    Attributes:
        name: As the user gave it.
        studies: Study → metric → system → value. A logged run is one study with one system, and
            its values are the last that were logged.
        curves: Metric → step → value; empty where no steps are known.
    """

    name: str
    studies: Mapping[str, Table]
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


def read_run(
    name: str,
    system_columns: Sequence[str] = ("system",),
    metric_columns: Sequence[str] = ("metric",),
) -> Run:
    """Reads a CSV or JSON file, or the folder of a logger.

    Folders are those of `HistoryLogger` (with the `summary.json` of `BeforeAfter`, if there is
    one), of Lightning's `CSVLogger`, and of W&B (`offline-run-…` or `run-…`).

    Args:
        name: A path. `FILE.csv:column=value,…` takes the rows that hold these values.
        system_columns: Of a CSV file: together they name the system of a row.
        metric_columns: Of a long CSV file: together they name the metric of a row.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: It holds something else; says what and where.
        ImportError: A W&B folder, and wandb is not installed.
    """
    path, wanted = csv_results.split_selection(name)
    if path.is_dir():
        return _read_folder(name, path)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: there is no such file or folder")
    if path.suffix == ".json":
        return Run(name, {"": _read_json(path)})
    if path.suffix != ".csv":
        raise ValueError(
            f"{name}: takes .csv and .json files and the folders of loggers, not {path.suffix!r}"
        )
    header, rows = csv_results.read_csv(path, wanted)
    if "step" in header and not set(header) & {"value", *system_columns}:
        return _logged(name, _csv_history(path, rows))
    return Run(
        name, csv_results.studies(path, header, rows, system_columns, metric_columns, _ITSELF)
    )


def _read_folder(name: str, folder: Path) -> Run:
    if (folder / "metrics.jsonl").is_file():
        history = JsonLog(folder / "metrics.jsonl").read()
        run = _logged(name, [_history_row(row, folder / "metrics.jsonl") for row in history])
        return _with_report(run, folder / "summary.json")
    if (folder / "metrics.csv").is_file():
        _, rows = csv_results.read_csv(folder / "metrics.csv", {})
        return _logged(name, _csv_history(folder / "metrics.csv", rows))
    for file in sorted(folder.glob("*.wandb")):
        return _logged(name, [_history_row(row, file) for row in read_wandb_history(file)])
    summary = folder / "files" / "wandb-summary.json"
    if summary.is_file():
        return Run(name, {"": _one_system(_numbers(_load_json(summary)))})
    raise ValueError(
        f"{name} is no logger's folder: it has no metrics.jsonl (HistoryLogger), no metrics.csv "
        "(CSVLogger: give the folder version_…), no *.wandb and no files/wandb-summary.json (W&B: "
        "give the folder offline-run-… or run-…)"
    )


def _logged(name: str, rows: Iterable[Row]) -> Run:
    """Curves of all metrics, and their last values as the results."""
    curves: dict[str, dict[int, float]] = {}
    last: dict[str, float] = {}
    for step, metrics in rows:
        for metric, value in metrics.items():
            curves.setdefault(metric, {})[step] = value
            last[metric] = value
    if not last:
        raise ValueError(f"{name} holds no logged number: has the run reached its first step?")
    return Run(name, {"": _one_system(last)}, curves)


def _with_report(run: Run, summary: Path) -> Run:
    """Adds what `BeforeAfter` measured: the policy that was selected, on held-out prompts."""
    report = _load_json(summary) if summary.is_file() else {}
    measured = {f"after/{name}": v for name, v in _numbers(report.get("after", {})).items()}
    measured |= _numbers({name: report[name] for name in ("difference",) if name in report})
    measured.pop("after/generations", None)
    return Run(run.name, {"": {**run.studies[""], **_one_system(measured)}}, run.curves)


def _csv_history(path: Path, rows: Sequence[CsvRow]) -> list[Row]:
    """Rows of Lightning's `CSVLogger`, which leaves cells empty where nothing was logged."""
    found: list[Row] = []
    for line, cells in rows:
        metrics = {
            metric: csv_results.number(path, line, metric, text)
            for metric, text in cells.items()
            if text and metric not in _BOOKKEEPING
        }
        step = csv_results.number(path, line, "step", cells.get("step", ""))
        if not isfinite(step):
            raise ValueError(f"{path}:{line} has no step: give one in each row, in a column step")
        found.append((int(step), metrics))
    return found


def _history_row(row: Mapping[str, Any], path: Path) -> Row:
    steps = [row[name] for name in _STEPS if name in row]
    if not steps:
        raise ValueError(f"{path} has a row without {' or '.join(_STEPS)}: {', '.join(row)}")
    return int(steps[0]), _numbers(row)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row; tables, pictures, steps and W&B's own keys are none."""
    found = {}
    for name, value in row.items():
        own = name in _BOOKKEEPING or name.startswith("_")
        if own or isinstance(value, bool):
            continue
        if value is None or value in ("NaN", "Infinity", "-Infinity"):  # JSON has no word for it
            found[name] = nan
        elif isinstance(value, int | float):
            found[name] = float(value)
    return found


def _one_system(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    return {metric: {_ITSELF: value} for metric, value in metrics.items()}


def _read_json(path: Path) -> Table:
    """`{system: {metric: value}}`, or `{metric: value}` of a single system."""
    content = _load_json(path)
    systems = {_ITSELF: content}
    if content and all(isinstance(value, dict) for value in content.values()):
        systems = content
    table: dict[str, dict[str, float]] = {}
    for system, metrics in systems.items():
        for metric, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise ValueError(
                    f"{path}: {metric} = {value!r} is no number: give {{system: {{metric: value}}}}"
                    " or {metric: value}"
                )
            table.setdefault(metric, {})[system] = nan if value is None else float(value)
    return table


def _load_json(path: Path) -> dict[str, Any]:
    content = parse_json(decode(path.read_bytes(), path), path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}: give an object")
    return content
