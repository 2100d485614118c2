"""Files of texts: JSONL, CSV and Parquet in, `Samples` between, the same with scores out."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.samples import JSON_KEYS, Samples
from ctrlreward.scorers.base import Scores

Record: TypeAlias = dict[str, Any]

SUFFIXES = (".jsonl", ".csv", ".parquet")
_LONGEST_CELL = 2**31 - 1  # of CSV; the library's own limit is shorter than some documents


@dataclass(frozen=True)
class Columns:
    """Which column of the file holds what. One that the file lacks is not read, but text is;
    null leaves one aside that the file has.

    Args:
        text: The generated texts, prefix included.
        prefix: What each text begins with.
        label: The wanted attribute.
        source: The input of a transfer or a summary.
        reference: A human-written target.
        context: Knowledge that the text should draw on.
        history: The dialog before the text.
        prompt: What the generator read.
        group: Which texts answer the same prompt.
    """

    text: str = "text"
    prefix: str | None = "prefix"
    label: str | None = "label"
    source: str | None = "source"
    reference: str | None = "reference"
    context: str | None = "context"
    history: str | None = "history"
    prompt: str | None = "prompt"
    group: str | None = "group"


def check_suffix(path: Path) -> None:
    """Raises where a file is of a form that can't be read or written.

    Raises:
        ValueError: The suffix is none of `SUFFIXES`.
        ImportError: It is Parquet, and pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends in {path.suffix!r}: give {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _parquet()


def read_records(path: Path) -> list[Record]:
    """The rows of a file, by its suffix; the values of a CSV file are strings.

    Raises:
        ValueError: The suffix is unknown, there is no row, or one is not like the others; names
            the line.
    """
    check_suffix(path)
    if path.suffix == ".parquet":
        records = _parquet().read_table(path).to_pylist()
    else:
        with open(path, encoding="utf-8-sig", newline="") as file:
            records = _read_csv(path, file) if path.suffix == ".csv" else _read_jsonl(path, file)
    if not records:
        raise ValueError(f"{path} has no rows")
    return records


def to_samples(records: Sequence[Record], columns: Columns) -> Samples:
    """The columns that scorers read.

    Raises:
        ValueError: The text, or a column that was renamed, is not there (lists those that are),
            or a row lacks a column that the first has.
        TypeError: A value is no string.
    """
    present = {}
    for key, name in asdict(columns).items():
        if name in records[0]:
            present[key] = name
        elif key == "text" or (name is not None and name != key):
            raise ValueError(
                f"there is no column {name!r} for {key}: the file has {', '.join(records[0])}; "
                f"name it with --columns.{key}"
            )
    return Samples(
        **{
            name: [_value(records, i, present[key]) for i in range(len(records))]
            for name, key in JSON_KEYS.items()
            if key in present
        }
    )


def numbers(records: Sequence[Record], name: str) -> Scores:
    """A column of numbers, float64 of shape (n,); NaN where it is empty or null.

    Raises:
        ValueError: There is no such column (lists those that are), or a row lacks it or has
            something else in it (names the row).
    """
    if name not in records[0]:
        raise ValueError(f"there is no column {name!r}: the file has {', '.join(records[0])}")
    values = np.full(len(records), np.nan)
    for i in range(len(records)):
        value = _value(records, i, name)
        if value not in ("", None):
            try:
                values[i] = float(value)
            except (TypeError, ValueError):
                raise ValueError(f"{name}[{i}] = {value!r} is no number") from None
    return values


def encode(suffix: str, records: Sequence[Record], scores: Mapping[str, Scores]) -> bytes:
    """The content of a file: every column of the records, then the scores.

    NaN is null in JSONL and Parquet and an empty cell in CSV. Lists and objects of a JSONL file
    are written as JSON into cells of CSV.

    Raises:
        ValueError: A column can't be stored in Parquet, because its values differ in type.
    """
    lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
    if suffix == ".parquet":
        return _encode_parquet(records, lists)
    rows = [
        {**record, **{name: values[i] for name, values in lists.items()}}
        for i, record in enumerate(records)
    ]
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _names([*records, lists]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue().encode()


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or not at all, and its folder where it lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _read_csv(path: Path, file: io.TextIOBase) -> list[Record]:
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.DictReader(file, strict=True)
    records: list[Record] = []
    try:
        for record in reader:
            if None in record or None in record.values():
                width = len(reader.fieldnames or ())
                raise csv.Error(f"not as many cells as the header, which has {width}")
            records.append(record)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    return records


def _read_jsonl(path: Path, file: io.TextIOBase) -> list[Record]:
    records = []
    for number, line in enumerate(file, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number} is no JSON object: {line.strip()[:40]}")
        records.append(record)
    return records


def _value(records: Sequence[Record], row: int, name: str) -> Any:
    if name not in records[row]:
        raise ValueError(f"row {row} has no {name!r}, which the first row has")
    return records[row][name]


def _names(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns, in the order in which they first occur."""
    return list(dict.fromkeys(name for record in records for name in record))


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _parquet() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(
            "a Parquet file takes pyarrow: pip install 'ctrlreward[parquet]'"
        ) from None
    return pyarrow.parquet


def _encode_parquet(records: Sequence[Record], scores: Mapping[str, Sequence[Any]]) -> bytes:
    parquet = _parquet()
    import pyarrow

    arrays = {}
    for name in _names(records):
        try:
            arrays[name] = pyarrow.array([record.get(name) for record in records])
        except pyarrow.ArrowException as error:
            raise ValueError(
                f"the column {name!r} can't be stored in Parquet ({error}): write .jsonl instead"
            ) from None
    for name, values in scores.items():
        arrays[name] = pyarrow.array(values, type=pyarrow.float64())
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), buffer)
    return buffer.getvalue()
