"""Logs of trainers as steps with metrics.

Supported are the files of `HistoryLogger`, of Lightning's `CSVLogger`, `trainer_state.json` of
transformers and TRL, Weights & Biases (offline), TensorBoard, verl's file logger, and JSON lines
with a step each.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import isfinite, nan
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple, TypeAlias

from ctrlreward.arguments import kind_of
from ctrlreward.extras import import_extra
from ctrlreward.files import parse_json
from ctrlreward.tables.parsing import cell_number, decode_utf8, no_such_file, parse_csv

# One logging call: the step, and the values by metric.
LoggedStep: TypeAlias = tuple[int, Mapping[str, float]]

# Keys of the step, the first one counts. W&B's own `_step` counts calls of its `log`.
_STEPS = ("trainer/global_step", "train/global_step", "eval/global_step", "global_step", "step")
_CALLS = "_step"
_BOOKKEEPING = {*_STEPS, _CALLS, "epoch"}
_SCORED_STEP = "/scored_step"
_NO_NUMBERS = ("NaN", "nan", "Infinity", "inf", "-Infinity", "-inf")  # spellings of loggers

# Folders with files that look like logs but are not.
_NO_LOGS = re.compile(r"samples|rescored|checkpoints|(checkpoint-|global_step).*|\..*")
_COMPARED = ("before.jsonl", "after.jsonl")  # texts of `BeforeAfter`
_DEPTH = 3

FORMATS = (
    "metrics.jsonl (HistoryLogger), metrics.csv (CSVLogger), trainer_state.json (transformers, "
    "TRL), *.wandb (W&B), events.out.tfevents.* (TensorBoard), *.jsonl (verl, or an object with a "
    "step per line)"
)


class Log(NamedTuple):
    """Log of one run.

    Attributes:
        source: Its writer, such as `"HistoryLogger"`.
        path: Its path.
        rows: Steps in the order of the log; a step may have several rows.
        declared: Further content of `trainer_state.json`.
    """

    source: str
    path: Path
    rows: Sequence[LoggedStep]
    declared: Mapping[str, Any] = {}


class NoLog(ValueError):
    """A folder without the log of one run, or a log without numbers; a damaged log is another."""


def read_log(name: str | Path, texts: Collection[Path] = ()) -> Log:
    """Read the log of a run.

    Args:
        name: A file, or a folder with one run: of a logger, or the trainer's `output_dir`.
        texts: Files of a folder that are texts, not logs.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: It is not a log, or damaged, or has several runs; names the file and the line.
    """
    path = Path(name)
    if path.is_dir():
        path = _log_in(path, texts)
    elif not path.is_file():
        raise no_such_file(path)
    try:
        log = _read_tensorboard(path) if path.is_dir() else _read_file(path)
    except (ArithmeticError, AttributeError, TypeError) as error:  # another form of values
        raise ValueError(f"{path} is not the log of a run: {error}") from None
    if not any(values for _, values in log.rows):
        raise NoLog(f"{log.path} has no logged numbers: did the run reach its first step?")
    return log


def _log_in(folder: Path, texts: Collection[Path]) -> Path:
    found = list(_logs_in(folder, _DEPTH, texts))
    if not found:
        raise NoLog(f"{folder} has no log of a run, must be a folder with {FORMATS}")
    if len(found) > 1:
        names = ", ".join(str(path) for path in sorted(found)[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise NoLog(
            f"{folder} has {len(found)} logs, choose one of them: {names}{more}. A resumed run has "
            "one log if a HistoryLogger writes it."
        )
    return found[0]


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


def _read_file(path: Path) -> Log:
    if path.stat().st_size == 0:
        raise NoLog(f"{path} is empty: did the run reach its first step?")
    if path.suffix == ".wandb":
        return Log("W&B", path, _with_steps(read_wandb_history(path), path))
    if "tfevents" in path.name:
        return _read_tensorboard(path)
    reader = _TEXTS.get(path.suffix)
    if reader is None:
        raise ValueError(f"{path} is not the log of a run, must be {FORMATS}")
    return reader(path, decode_utf8(path.read_bytes(), path))


# Text files


def _read_jsonl(path: Path, text: str) -> Log:
    # An incomplete last line of a running or killed job is not read.
    complete = text[: text.rfind("\n") + 1] or text
    rows = []
    source = "HistoryLogger" if path.name == "metrics.jsonl" else "JSON lines"
    for number, line in enumerate(complete.split("\n"), 1):
        if not line.strip():
            continue
        row = parse_json(line, path, number)
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} contains {kind_of(row)}, must be a JSON object")
        if isinstance(row.get("data"), dict):
            source, row = "verl", {**row["data"], "step": row.get("step")}
        rows.append(row)
    return Log(source, path, _with_steps(rows, path))


def _read_csv(path: Path, text: str) -> Log:
    # A running job may be writing the last row.
    _, cells = parse_csv(text[: text.rfind("\n") + 1] or text, path)
    return Log("CSVLogger", path, csv_history(path, cells))


def csv_history(path: Path, rows: Iterable[tuple[int, Mapping[str, str]]]) -> list[LoggedStep]:
    """Parse rows of Lightning's `CSVLogger`, whose empty cells are metrics not logged."""
    history: list[LoggedStep] = []
    for line, cells in rows:
        numbers = {}
        for metric, text in cells.items():
            if metric == "step" or (text and metric not in _BOOKKEEPING):
                numbers[metric] = cell_number(text, f"{path}:{line}: {metric}")
        step = numbers.pop("step", nan)
        if not isfinite(step):
            raise ValueError(
                f"{path}:{line} has no step, must have one in each row, in a column named step"
            )
        history += at_scored_steps(int(step), numbers)
    return history


def _read_trainer_state(path: Path, text: str) -> Log:
    state = parse_json(text, path)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise ValueError(f"{path} has no log_history, must be a trainer_state.json, or {FORMATS}")
    return Log("trainer_state.json", path, _with_steps(state["log_history"], path), state)


_TEXTS: Mapping[str, Callable[[Path, str], Log]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".json": _read_trainer_state,
}


# Binary files

# Of a `.wandb` file: sizes of a block and of the file's header, and the header of a piece.
_BLOCK = 32 * 1024
_FILE_HEADER = 7
_PIECE_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4  # kinds of pieces that end a record


def read_wandb_history(path: Path) -> list[dict[str, Any]]:
    """Read the logged values of a run, without tables and images: a dictionary per logging call.

    The file is `run-….wandb` in a folder `offline-run-…`; `_step` counts the calls.
    """
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
        raise ValueError(f"{path} has no scalars of TensorBoard: it is empty or damaged")
    rows = [row for step in sorted(by_step) for row in at_scored_steps(step, by_step[step])]
    return Log("TensorBoard", path, rows)


# Rows


def _with_steps(rows: Sequence[Any], path: Path) -> list[LoggedStep]:
    """Return steps and numbers of rows.

    W&B's `_step` counts if no row has another step; a row without the other step, such as a row of
    a callback that logs separately, belongs to the last step before.
    """
    result: list[LoggedStep] = []
    known = any(key in row for row in rows if isinstance(row, dict) for key in _STEPS)
    last: int | None = None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}: row {number} is not an object with a step")
        steps = [row[key] for key in _STEPS if row.get(key) is not None]
        if steps:
            given = steps[0]
        elif _CALLS in row:
            given = last if known and last is not None else row[_CALLS]
        else:
            raise ValueError(
                f"{path} has a row without {', '.join(_STEPS)} or {_CALLS}: {', '.join(row)[:200]}"
            )
        if isinstance(given, bool) or not isinstance(given, int | float) or not isfinite(given):
            raise ValueError(f"{path}: row {number} has the step {given!r}, must be a number")
        last = int(given)
        result += at_scored_steps(last, row)
    return result


def at_scored_steps(step: int, row: Mapping[str, Any]) -> list[LoggedStep]:
    """Return the metrics of a row; scores logged late are at the step of their texts.

    W&B has this step as `<name>/scored_step`, in the row after the validation's.

    Examples:
        >>> at_scored_steps(20, {"loss": 0.1, "score/sim": 0.5, "score/scored_step": 10.0})
        [(10, {'score/sim': 0.5}), (20, {'loss': 0.1})]
    """
    metrics = numbers_of(row)
    late: dict[int, dict[str, float]] = {}
    for key in [key for key in row if key.endswith(_SCORED_STEP)]:
        scored = row[key]
        if isinstance(scored, int | float) and isfinite(scored):
            name = key.removesuffix("scored_step")
            mine = {each: metrics.pop(each) for each in list(metrics) if each.startswith(name)}
            late.setdefault(int(scored), {}).update(mine)
    return [*late.items(), *([(step, metrics)] if metrics or not late else [])]


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a row without tables, images, steps and W&B's own keys.

    The summary of a W&B run may have several values of a metric; its last one counts.

    Examples:
        >>> numbers_of({"step": 3, "acc": 0.5, "loss": "NaN", "note": "warm-up"})
        {'acc': 0.5, 'loss': nan}
    """
    metrics = {}
    for name, value in row.items():
        if name in _BOOKKEEPING or name.startswith("_") or name.endswith(_SCORED_STEP):
            continue
        if isinstance(value, dict) and "last" in value:
            value = value["last"]
        if isinstance(value, bool):
            continue
        if value is None or value in _NO_NUMBERS:
            metrics[name] = nan
        elif isinstance(value, int | float):
            metrics[name] = float(value) if abs(value) <= float_info.max else nan
    return metrics
