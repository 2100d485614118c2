"""Logs of trainers as steps with metrics; the logs of a run that was resumed are joined by step."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple, TypeAlias

from ctrlreward.arguments import kind_of
from ctrlreward.files import json_lines, parse_json, read_json
from ctrlreward.held_out import SCORED_STEP
from ctrlreward.selection.replay import DECISIONS
from ctrlreward.tables.columns import number_of
from ctrlreward.tables.rows import decode_utf8, parse_csv

# One logging call: the step, and the values by metric.
LoggedStep: TypeAlias = tuple[int, Mapping[str, float]]

FORMATS = "metrics.jsonl, metrics.csv, trainer_state.json, or a *.jsonl with a step per line"

_NO_METRICS = ("step", "epoch")
# Folders with files that look like logs but are not, and texts of `BeforeAfter`.
_NO_LOGS = re.compile(r"samples|rescored|checkpoints|wandb|(checkpoint-|global_step).*|\..*")
_COMPARED = ("before.jsonl", "after.jsonl")
_DEPTH = 3
_VERSION = re.compile(r"version_(\d+)")  # folder of Lightning's logger, one for each start of a run


class Log(NamedTuple):
    """Log of one run.

    Attributes:
        source: Its writer, such as `"HistoryLogger"`.
        path: Its file; of a resumed run, of its last part.
        rows: Steps in the order of the log; a step may have several rows.
        declared: Further content of `trainer_state.json`.
        parts: Folder of each part of a resumed run → first step of the next part, which may be the
            step of the checkpoint, and replaces what it has as well.
    """

    source: str
    path: Path
    rows: Sequence[LoggedStep]
    declared: Mapping[str, Any] = {}
    parts: Mapping[Path, float] = {}

    @property
    def folder(self) -> Path:
        """Folder of the log, which is the source itself of a run with texts alone."""
        return self.path if self.path.is_dir() else self.path.parent


class NoLog(ValueError):
    """A folder without the log of one run, or a log without numbers; a damaged log is another."""


def read_log(name: str | Path, texts: Collection[Path] = ()) -> Log:
    """Read the log of a run.

    Args:
        name: A file, or a folder with one run: of a logger, or the trainer's `output_dir`. A
            resumed run's last folder, such as `version_2`, stands for `version_0` and `version_1`
            as well.
        texts: Files of a folder that are texts, not logs.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: It is not a log, or damaged, or has several runs; names the file and the line.
    """
    path = Path(name)
    if path.is_file():
        return _read_file(path)
    path.stat()
    paths = list(_logs_in(path, _DEPTH, texts))
    if not paths:
        raise NoLog(f"{path} has no log of a run: {FORMATS}")
    numbered = all(_version(each) >= 0 for each in paths)
    if len(paths) > 1 and not (numbered and len({each.parent.parent for each in paths}) == 1):
        raise _several(path, paths)
    if numbered:  # and what it logged in earlier starts
        beside = paths[0].absolute().parents[1].glob("version_*")
        logs = [log for each in beside if each.is_dir() for log in _logs_in(each, 0, ())]
        last = max(map(_version, paths))
        paths = sorted((log for log in logs if 0 <= _version(log) <= last), key=_version)
    runs: list[list[Log]] = []
    for each in paths:
        try:
            log = _read_file(each)
        except NoLog:  # killed before its first step
            if len(paths) == 1:
                raise
            continue
        if runs and log.rows[0][0] > runs[-1][0].rows[0][0]:
            runs[-1].append(log)
        else:
            runs.append([log])
    if not runs:
        raise NoLog(f"{path} has no logged numbers: did the run reach its first step?")
    if len(runs) > 1 and not _VERSION.fullmatch(path.absolute().name):
        raise _several(path, [run[-1].folder for run in runs])
    rows: list[LoggedStep] = []
    parts: dict[Path, float] = {}
    for log in runs[-1]:
        first = log.rows[0][0]
        rows = [row for row in rows if row[0] <= first] + list(log.rows)
        parts = {each: min(end, first) for each, end in parts.items()} | {log.folder: inf}
    return log._replace(rows=rows, parts=parts)


def noted(folder: Path) -> dict[str, Any]:
    """Return what our callbacks wrote next to a log; empty without them."""
    file = folder / DECISIONS
    return as_mapping(read_json(file)) if file.is_file() else {}


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders of checkpoints that are noted next to a log."""
    names = as_mapping(noted(folder).get("folders"))
    return [Path(os.path.normpath(folder / name)) for name in names if "://" not in name]


def as_mapping(value: object) -> dict[str, Any]:
    """Return an object of JSON; an empty one for another value."""
    return value if isinstance(value, dict) else {}


def _version(log: Path) -> int:
    """Return the number of a start of a run, -1 in a folder without one."""
    match = _VERSION.fullmatch(log.absolute().parent.name)
    return int(match[1]) if match else -1


def _several(folder: Path, paths: Sequence[Path]) -> ValueError:
    names = ", ".join(str(path) for path in sorted(paths)[:5])
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ValueError(f"{folder} has logs of {len(paths)} runs, choose one of them: {names}{more}")


def _logs_in(folder: Path, depth: int, texts: Collection[Path]) -> Iterator[Path]:
    """Yield the log of a folder, or the logs of its folders if it has none itself."""
    for name in ("metrics.jsonl", "metrics.csv", "trainer_state.json"):
        if (folder / name).is_file():
            yield folder / name
            return
    states = list(folder.glob("checkpoint-*/trainer_state.json"))
    if states:
        yield max(states, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0))
        return
    inner = [path for path in sorted(folder.iterdir()) if not path.is_symlink()]
    files = [path for path in inner if path.suffix == ".jsonl" and path not in texts]
    if files := [path for path in files if path.is_file() and path.name not in _COMPARED]:
        yield from files
        return
    for path in inner if depth else ():
        if path.is_dir() and not _NO_LOGS.fullmatch(path.name):
            yield from _logs_in(path, depth - 1, texts)


def _read_file(path: Path) -> Log:
    if path.stat().st_size == 0:
        raise NoLog(f"{path} is empty: did the run reach its first step?")
    if path.suffix not in (".csv", ".json", ".jsonl"):
        raise ValueError(f"{path} is not the log of a run, must be {FORMATS}")
    text = decode_utf8(path.read_bytes(), path)
    complete = text[: text.rfind("\n") + 1] or text  # a running job may be writing the last row
    if path.suffix == ".json":
        state = parse_json(text, path)
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise ValueError(f"{path} has no log_history, must be a trainer_state.json")
        rows = [_row(each, f"{path}: row {i}") for i, each in enumerate(state["log_history"], 1)]
        log = Log("trainer_state.json", path, rows, state)
    elif path.suffix == ".csv":
        rows = [_csv_row(cells, f"{path}:{line}") for line, cells in parse_csv(complete, path)]
        log = Log("CSVLogger", path, rows)
    else:
        source, rows = "HistoryLogger" if path.name == "metrics.jsonl" else "JSON lines", []
        for number, row in json_lines(complete.split("\n"), path):
            if isinstance(row, dict) and isinstance(row.get("data"), dict):
                source, row = "verl", {**row["data"], "step": row.get("step")}
            rows += [_row(row, f"{path}:{number}")] if row else []
        log = Log(source, path, rows)
    if not any(values for _, values in log.rows):
        raise NoLog(f"{path} has no logged numbers: did the run reach its first step?")
    return log


def _row(row: Any, place: str) -> LoggedStep:
    """Return step and numbers of an object of JSON."""
    if not isinstance(row, dict):
        raise ValueError(f"{place} contains {kind_of(row)}, must be a JSON object")
    numbers = {key: finite_or_nan(value) for key, value in row.items() if _is_number(value)}
    step = numbers.get("step", nan)
    if not isfinite(step):
        raise ValueError(f"{place} has the step {str(row.get('step'))[:40]}, must be a number")
    return int(step), {k: value for k, value in numbers.items() if k not in _NO_METRICS}


def _csv_row(cells: Mapping[str, str], place: str) -> LoggedStep:
    """Return step and numbers of a row of `CSVLogger`, whose empty cells were not logged.

    Lightning logs step 99, with the epoch, for the checkpoint of step 100; of weights that are
    evaluated after training, a `GenerationScorer` logs the step.
    """
    logged = {"step"} | {name for name, text in cells.items() if text and name != "epoch"}
    numbers = {name: number_of(cells.get(name), f"{place}: {name}") for name in logged}
    scored = [value for name, value in numbers.items() if name.endswith(f"/{SCORED_STEP}")]
    if scored:
        return _row({**numbers, "step": scored[0]}, place)
    step, metrics = _row(numbers, place)
    return step + bool(cells.get("epoch")), metrics


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def finite_or_nan(value: float | None) -> float:
    """Return a number; NaN for null, infinity, and an integer beyond any float."""
    return nan if value is None or abs(value) > float_info.max else float(value)
