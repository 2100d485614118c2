"""Files of texts: JSONL, CSV and Parquet in, `Samples` between, the same with scores out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.commands.formats.parsing import decode, numbered_lines, parse_csv, parse_json
from ctrlreward.samples import JSON_KEYS, Samples
from ctrlreward.scorers.base import Scores

Record: TypeAlias = dict[str, Any]

SUFFIXES = (".jsonl", ".csv", ".parquet")


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
    """The rows of a file, as `parse_records` gives them."""
    check_suffix(path)
    return parse_records(path.read_bytes(), path)


def parse_records(content: bytes, path: Path) -> list[Record]:
    """The rows of a file, by its suffix; the values of a CSV file are strings.

    Args:
        content: Of the file.
        path: The file.

    Raises:
        ValueError: The suffix is unknown, there is no row, or one is not like the others; names
            the line.
    """
    check_suffix(path)
    if path.suffix == ".parquet":
        records = _parse_parquet(content, path)
    elif path.suffix == ".csv":
        records = [row for _, row in parse_csv(decode(content, path), path)[1]]
    else:
        records = _parse_jsonl(decode(content, path), path)
    if not records:
        raise ValueError(f"{path} has no rows")
    return records


def to_samples(records: Sequence[Record], columns: Columns) -> Samples:
    """The columns that scorers read.

    Raises:
        ValueError: The text, or a column that was renamed, is not there (lists those that are),
            or a row lacks a column that the first has.
        TypeError: A value is no string; names the row.
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
            name: [_string(records, i, present[key], key) for i in range(len(records))]
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
        ValueError: A column can't be stored: in Parquet because its values differ in type, in JSON
            because it has no form for them (dates, infinity).
    """
    lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
    if suffix == ".parquet":
        return _encode_parquet(records, lists)
    rows = [
        {**record, **{name: values[i] for name, values in lists.items()}}
        for i, record in enumerate(records)
    ]
    if suffix == ".jsonl":
        return "".join(_json_line(row) for row in rows).encode()
    return _csv(_names([*records, lists]), rows).encode()


def _parse_jsonl(text: str, path: Path) -> list[Record]:
    records = []
    for number, line in numbered_lines(text):
        record = parse_json(line, path, number)
        if not isinstance(record, dict):
            raise ValueError(f"{path}:{number} is no JSON object: {line[:40]}")
        records.append(record)
    return records


def _parse_parquet(content: bytes, path: Path) -> list[Record]:
    parquet = _parquet()
    import pyarrow

    try:
        return parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from None


def _value(records: Sequence[Record], row: int, name: str) -> Any:
    if name not in records[row]:
        raise ValueError(f"row {row} has no {name!r}, which the first row has")
    return records[row][name]


def _string(records: Sequence[Record], row: int, name: str, key: str) -> str:
    value = _value(records, row, name)
    if not isinstance(value, str):
        aside = "" if key == "text" else f", or leave the column aside with --columns.{key}=null"
        kind = type(value).__name__
        raise TypeError(f"{name}[{row}] = {value!r} is a {kind}: give strings{aside}")
    return value


def _names(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns, in the order in which they first occur."""
    return list(dict.fromkeys(name for record in records for name in record))


def _json_line(row: Record) -> str:
    cells = (f"{json.dumps(name, ensure_ascii=False)}: {_json(row[name], name)}" for name in row)
    return "{" + ", ".join(cells) + "}\n"


def _json(value: Any, name: str) -> str:
    """A value of the column `name`; NaN, of which Parquet and Python's JSON know, is null."""
    try:
        missing = isinstance(value, float) and np.isnan(value)
        return json.dumps(None if missing else value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"the column {name!r} holds {str(value)[:40]}, for which JSON has no form: write "
            ".parquet instead"
        ) from None


def _csv(names: Sequence[str], rows: Sequence[Record]) -> str:
    buffer = io.StringIO(newline="")
    plain = csv.writer(buffer, lineterminator="\n")
    # The other leaves a lone \r bare, which ends a line for whoever reads the file.
    quoting = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for cells in (names, *([_cell(row.get(name), name) for name in names] for row in rows)):
        bare = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoting if bare else plain).writerow(cells)
    return buffer.getvalue()


def _cell(value: Any, name: str) -> Any:
    return _json(value, name) if isinstance(value, dict | list) else value


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
