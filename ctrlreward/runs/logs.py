"""Logs of trainers as steps with metrics; the logs of a run that was resumed are joined by step."""

from __future__ import annotations

import json
import logging
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import inf, isfinite, nan
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple, TypeAlias

from ctrlreward.arguments import kind_of
from ctrlreward.extras import import_extra
from ctrlreward.files import parse_json, read_json
from ctrlreward.selection.replay import DECISIONS
from ctrlreward.tables.columns import number_of
from ctrlreward.tables.rows import decode_utf8, no_such_file, parse_csv

# One logging call: the step, and the values by metric.
LoggedStep: TypeAlias = tuple[int, Mapping[str, float]]

# Keys of the step, the first one counts. W&B's own `_step` counts calls of its `log`.
_STEPS = ("trainer/global_step", "train/global_step", "eval/global_step", "global_step", "step")
_CALLS = "_step"
_BOOKKEEPING = {*_STEPS, _CALLS, "epoch"}
_SCORED_STEP = "/scored_step"
_NO_NUMBERS = ("NaN", "nan", "Infinity", "inf", "-Infinity", "-inf")  # spellings of loggers

# Folders with files that look like logs but are not, and texts of `BeforeAfter`.
_NO_LOGS = re.compile(r"samples|rescored|checkpoints|(checkpoint-|global_step).*|\..*")
_COMPARED = ("before.jsonl", "after.jsonl")
_DEPTH = 3
# Folders of a logger, a new one each time a run starts: of Lightning, and of W&B with the same id.
_VERSION = re.compile(r"version_(?P<number>\d+)|(offline-)?run-(?P<time>\d+_\d+)-(?P<id>\w+)")

FORMATS = (
    "metrics.jsonl, metrics.csv, trainer_state.json, *.wandb, events.out.tfevents.*, or a *.jsonl "
    "with a step per line"
)


class Log(NamedTuple):
    """Log of one run.

    Attributes:
        source: Its writer, such as `"HistoryLogger"`.
        path: Its path; of a resumed run, of its last part.
        rows: Steps in the order of the log; a step may have several rows.
        declared: Further content of `trainer_state.json`.
        parts: Folder of each part of a resumed run → first step that the next part replaces.
    """

    source: str
    path: Path
    rows: Sequence[LoggedStep]
    declared: Mapping[str, Any] = {}
    parts: Mapping[Path, float] = {}

    @property
    def folder(self) -> Path:
        """Folder of the log, which is the log itself of TensorBoard."""
        return self.path if self.path.is_dir() else self.path.parent


class NoLog(ValueError):
    """A folder without the log of one run, or a log without numbers; a damaged log is another."""


class SeveralRuns(NoLog):
    """A folder with the logs of several runs."""


def read_log(name: str | Path, texts: Collection[Path] = ()) -> Log:
    """Read the log of a run.

    Args:
        name: A file, or a folder with one run: of a logger, or the trainer's `output_dir`. The
            logger's folder `version_2` has what a resumed run logged in `version_0` and
            `version_1`, too.
        texts: Files of a folder that are texts, not logs.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: It is not a log, or damaged, or has several runs; names the file and the line.
    """
    path = Path(name)
    if not path.is_dir():
        if not path.is_file():
            raise no_such_file(path)
        return _numbers(path)
    paths = list(_logs_in(path, _DEPTH, texts))
    if not paths:
        raise NoLog(f"{path} has no log of a run: {FORMATS}")
    series, start = _version(paths[0])
    if len(paths) == 1 and series != (paths[0], ""):  # and what it logged in earlier starts
        beside = [each for each in series[0].iterdir() if each.is_dir()]
        logs = [log for each in beside for log in _logs_in(each, 0, ())]
        earlier = [log for log in logs if _version(log)[0] == series and _version(log)[1] < start]
        paths = [*earlier, *paths]
    elif len({_version(each)[0] for each in paths}) > 1:
        raise _several(path, paths)
    runs: list[list[Log]] = []
    for each in sorted(paths, key=lambda log: _version(log)[1]):
        try:
            log = _numbers(each)
        except NoLog:  # killed before its first step
            if len(paths) == 1:
                raise
            continue
        if runs and _continues(log, runs[-1]):
            runs[-1].append(log)
        else:
            runs.append([log])
    if not runs:
        raise NoLog(f"{path} has no logged numbers: did the run reach its first step?")
    if len(runs) > 1 and not _VERSION.fullmatch(path.resolve().name):
        raise _several(path, [run[-1].folder for run in runs])
    rows: list[LoggedStep] = []
    parts: dict[Path, float] = {}
    for log in runs[-1]:
        first = log.rows[0][0]
        rows = [row for row in rows if row[0] < first] + list(log.rows)
        parts = {each: min(end, first) for each, end in parts.items()} | {log.folder: inf}
    return log._replace(rows=rows, parts=parts)


def _numbers(path: Path) -> Log:
    try:
        log = _read_tensorboard(path) if path.is_dir() else _read_file(path)
    except (ArithmeticError, AttributeError, TypeError) as error:  # another form of values
        raise ValueError(f"{path} is not the log of a run: {error}") from None
    if not any(values for _, values in log.rows):
        raise NoLog(f"{log.path} has no logged numbers: did the run reach its first step?")
    return log


def _several(folder: Path, paths: Sequence[Path]) -> SeveralRuns:
    names = ", ".join(str(path) for path in sorted(paths)[:5])
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return SeveralRuns(f"{folder} has logs of {len(paths)} runs, choose one of them: {names}{more}")


def _logs_in(folder: Path, depth: int, texts: Collection[Path]) -> Iterator[Path]:
    """Yield the log of a folder, or the logs of its folders if it has none itself.

    Links are not followed, so that `wandb/latest-run` is not a second run.
    """
    for name in ("metrics.jsonl", "metrics.csv", "trainer_state.json"):
        if (folder / name).is_file():
            yield folder / name
            return
    states = list(folder.glob("checkpoint-*/trainer_state.json"))
    if states:
        yield max(states, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0))
        return
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path not in texts]
    files = [path for path in files if path.name not in _COMPARED]
    if any(path.name.startswith("events.out.tfevents.") for path in files):
        yield folder
        return
    for pattern in ("*.wandb", "*.jsonl"):
        if matching := [path for path in files if path.match(pattern) and not path.is_symlink()]:
            yield from matching
            return
    for inner in sorted(folder.iterdir()) if depth else ():
        if inner.is_dir() and not inner.is_symlink() and not _NO_LOGS.fullmatch(inner.name):
            yield from _logs_in(inner, depth - 1, texts)


# Runs that were resumed


def _version(log: Path) -> tuple[tuple[Path, str], tuple[int, str]]:
    """Return what the logs of a resumed run share, parent folder and W&B's id; number and time."""
    folder = (log if log.is_dir() else log.parent).resolve()
    match = _VERSION.fullmatch(folder.name)
    if match is None:
        return (log, ""), (0, "")
    return (folder.parent, match["id"] or ""), (int(match["number"] or 0), match["time"] or "")


def _continues(log: Log, run: Sequence[Log]) -> bool:
    """Return whether a log begins at a later step, or has checkpoints in the same folder."""
    before, now = checkpoint_folders(run[-1].folder), checkpoint_folders(log.folder)
    return log.rows[0][0] > run[0].rows[0][0] or bool({*before} & {*now})


def noted(folder: Path) -> dict[str, Any]:
    """Return what our callbacks wrote next to a log; empty without them."""
    file = folder / DECISIONS
    content: dict[str, Any] = read_json(file) if file.is_file() else {}
    return content


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders of checkpoints that are noted next to a log."""
    names = noted(folder).get("folders", ())
    return [Path(os.path.normpath(folder / name)) for name in names if "://" not in name]


# Files


def _read_file(path: Path) -> Log:
    if path.stat().st_size == 0:
        raise NoLog(f"{path} is empty: did the run reach its first step?")
    if path.suffix == ".wandb":
        return Log("W&B", path, _with_steps(read_wandb_history(path), path))
    if "tfevents" in path.name:
        return _read_tensorboard(path)
    if path.suffix not in (".csv", ".json", ".jsonl"):
        raise ValueError(f"{path} is not the log of a run, must be {FORMATS}")
    text = decode_utf8(path.read_bytes(), path)
    if path.suffix == ".json":
        state = parse_json(text, path)
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise ValueError(f"{path} has no log_history, must be a trainer_state.json")
        return Log("trainer_state.json", path, _with_steps(state["log_history"], path), state)
    complete = text[: text.rfind("\n") + 1] or text  # a running job may be writing the last row
    if path.suffix == ".csv":
        return Log("CSVLogger", path, csv_history(path, parse_csv(complete, path)[1]))
    rows = []
    source = "HistoryLogger" if path.name == "metrics.jsonl" else "JSON lines"
    for number, line in enumerate(complete.split("\n"), 1):
        row = parse_json(line, path, number) if line.strip() else {}
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} contains {kind_of(row)}, must be a JSON object")
        if isinstance(row.get("data"), dict):
            source, row = "verl", {**row["data"], "step": row.get("step")}
        rows += [row] if row else []
    return Log(source, path, _with_steps(rows, path))


def csv_history(path: Path, rows: Iterable[tuple[int, Mapping[str, str]]]) -> list[LoggedStep]:
    """Parse rows of Lightning's `CSVLogger`, whose empty cells are metrics not logged."""
    history: list[LoggedStep] = []
    for line, cells in rows:
        numbers = {
            metric: number_of(text, f"{path}:{line}: {metric}")
            for metric, text in cells.items()
            if metric == "step" or (text and metric not in _BOOKKEEPING)
        }
        step = numbers.pop("step", nan)
        if not isfinite(step):
            raise ValueError(f"{path}:{line} has no step, must have one in a column named step")
        history.append((int(step), numbers))
    return history


def _read_tensorboard(path: Path) -> Log:
    name = "tensorboard.backend.event_processing.event_accumulator"
    module = import_extra(name, str(path))
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    accumulator = module.EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    by_step: dict[int, dict[str, float]] = {}
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            by_step.setdefault(int(event.step), {})[tag] = float(event.value)
    if not by_step:
        raise NoLog(f"{path} has no scalars of TensorBoard: it is empty or damaged")
    return Log("TensorBoard", path, sorted(by_step.items()))


# Of a `.wandb` file: sizes of a block and of the file's header, and the header of a piece.
_BLOCK = 32 * 1024
_FILE_HEADER = 7
_PIECE_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4  # kinds of pieces that end a record


def read_wandb_history(path: Path) -> list[dict[str, Any]]:
    """Read the logged values of a W&B run, without tables and images: a row per logging call."""
    messages = import_extra("wandb.proto.wandb_internal_pb2", str(path))
    parse_error = import_module("google.protobuf.message").DecodeError
    rows: list[dict[str, Any]] = []
    for record in records(path):
        try:
            items = messages.Record.FromString(record).history.item
            values = {tuple(i.nested_key) or (i.key,): json.loads(i.value_json) for i in items}
        except (parse_error, ValueError):
            raise ValueError(f"{path} is damaged: record {len(rows)} cannot be read") from None
        if items:
            # Tables and images are several items under one key, one of them named `_type`.
            media = {key[:-1] for key in values if len(key) > 1 and key[-1] == "_type"}
            rows.append({"/".join(k): v for k, v in values.items() if k[:-1] not in media})
    return rows


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after a file header.

    A record is split into pieces that never cross the end of a block; a remainder of a block that
    is too short for a header is padding. A killed run leaves an incomplete record at the end, which
    is skipped.
    """
    content = path.read_bytes()
    if content[:4] != b":W&B":
        raise ValueError(f"{path} is not a W&B file: it does not start with ':W&B'")
    position, record = _FILE_HEADER, b""
    while position + _PIECE_HEADER.size <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _PIECE_HEADER.size:
            position += left
            continue
        _, length, kind = _PIECE_HEADER.unpack_from(content, position)
        position += _PIECE_HEADER.size + length
        if position > len(content):
            return
        record += content[position - length : position]
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""


# Rows


def _with_steps(rows: Sequence[Any], path: Path) -> list[LoggedStep]:
    """Return steps and numbers of rows.

    W&B's `_step` counts if no row has another step; a row without the other step, such as a row of
    a callback that logs separately, belongs to the last step before. Scores with a step of their
    texts, as W&B has them in the row after the validation's, are at that step.
    """
    result: list[LoggedStep] = []
    known = any(key in row for row in rows if isinstance(row, dict) for key in _STEPS)
    last: int | None = None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}: row {number} is not an object with a step")
        steps = [row[key] for key in _STEPS if row.get(key) is not None]
        if not steps and _CALLS not in row:
            raise ValueError(
                f"{path} has a row without {', '.join(_STEPS)} or {_CALLS}: {', '.join(row)[:200]}"
            )
        step = steps[0] if steps else last if known and last is not None else row[_CALLS]
        if isinstance(step, bool) or not isinstance(step, int | float) or not isfinite(step):
            raise ValueError(f"{path}: row {number} has the step {step!r}, must be a number")
        last = int(step)
        metrics = numbers_of(row)
        scored = {k: v for k, v in row.items() if k.endswith(_SCORED_STEP)}
        for key, at in scored.items():
            name = key.removesuffix("scored_step")
            own = {each: metrics.pop(each) for each in list(metrics) if each.startswith(name)}
            result.append((int(at), own))
        if metrics or not scored:
            result.append((last, metrics))
    return result


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a row without tables, images, steps and W&B's own keys.

    Examples:
        >>> numbers_of({"step": 3, "acc": 0.5, "loss": "NaN", "note": "warm-up"})
        {'acc': 0.5, 'loss': nan}
    """
    metrics = {}
    for name, value in row.items():
        if name in _BOOKKEEPING or name.startswith("_") or name.endswith(_SCORED_STEP):
            continue
        if value is None or value in _NO_NUMBERS:
            metrics[name] = nan
        elif isinstance(value, int | float) and not isinstance(value, bool):
            metrics[name] = float(value) if abs(value) <= float_info.max else nan
    return metrics
