"""Tables of texts in JSONL, CSV and Parquet: read into `Samples`, written with scores."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.columns import JSON_KEYS, MissingColumn
from ctrlreward.commands.formats.parsing import (
    decode_utf8,
    numbered_lines,
    parse_csv,
    parse_json,
    read_bytes,
)
from ctrlreward.extras import import_extra
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

Row: TypeAlias = dict[str, Any]  # cells by column name

SUFFIXES = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Column names in the file (null ignores a column).

    Only the text is required. A column under its default name is used if the file has it; a
    renamed column must exist.

    Args:
        text: Generated texts, prefix included.
        prefix: The prefix that each text continues.
        label: The target attribute, such as a sentiment or topic.
        source: The input of a style transfer or a summary.
        reference: A human-written target.
        context: Knowledge that the text should use.
        history: The dialog before the text.
        prompt: The full prompt that the generator was given.
        group: Group ids; texts of one group answer the same prompt.
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
    """Raise if a file's format is unknown or can't be read and written here.

    Raises:
        ValueError: The suffix is not one of `SUFFIXES`.
        ImportError: It is Parquet, and pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends in {path.suffix!r}: give {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        import_extra("pyarrow", str(path))


def read_rows(path: Path) -> list[Row]:
    """Read a table from a file; see `parse_rows`."""
    check_suffix(path)
    return parse_rows(read_bytes(path), path)


def parse_rows(content: bytes, path: Path) -> list[Row]:
    """Parse a table in the format that the file's suffix names.

    Args:
        content: The file's content.
        path: The file.

    Returns:
        One or more rows; the values of a CSV file are strings.

    Raises:
        ValueError: The suffix is unknown, the file has no rows, or it is malformed; names the line.
    """
    check_suffix(path)
    if path.suffix == ".parquet":
        rows = _parse_parquet(content, path)
    elif path.suffix == ".csv":
        rows = [row for _, row in parse_csv(decode_utf8(content, path), path)[1]]
    else:
        rows = _parse_jsonl(decode_utf8(content, path), path)
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def to_samples(rows: Sequence[Row], columns: Columns) -> Samples:
    """Return the columns that scorers read.

    Raises:
        ValueError: The text column or a renamed column is missing (lists the file's columns), or
            a row lacks a column that the first row has.
        TypeError: A value is not a string; names the row.
    """
    present = {}
    for key, name in asdict(columns).items():
        if name in rows[0]:
            present[key] = name
        elif key == "text" or (name is not None and name != key):
            raise ValueError(
                f"there is no column {name!r} for {key}: the file has {', '.join(rows[0])}; "
                f"name it with --columns.{key}=COLUMN"
            )
    return Samples(
        **{
            name: [_string(rows, i, present[key], key) for i in range(len(rows))]
            for name, key in JSON_KEYS.items()
            if key in present
        }
    )


@contextmanager
def explained_columns(rows: Sequence[Row]) -> Iterator[None]:
    """Say how a file can have a column that a scorer lacks; `Samples` says it for Python.

    Raises:
        ValueError: As raised inside, with this explanation if a column is absent.
    """
    try:
        yield
    except MissingColumn as error:
        key, scorer = JSON_KEYS[error.column], error.reader.split()[0]
        raise ValueError(
            f"{error.reader} needs a column {key!r}: the file has {', '.join(rows[0])}. Add it, "
            f"name it with --columns.{key}=COLUMN, or choose other scores: --scorers.help={scorer} "
            "lists the options"
        ) from None


def number_column(rows: Sequence[Row], name: str) -> Scores:
    """Return a column of numbers, float64 of shape (n,); NaN for empty cells and null.

    Raises:
        ValueError: The column is missing (lists the file's columns), or a row lacks it or has
            a value that is not a number (names the row).
    """
    if name not in rows[0]:
        raise ValueError(f"there is no column {name!r}: the file has {', '.join(rows[0])}")
    values = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        value = _value(rows, i, name)
        if value not in ("", None):
            try:
                values[i] = float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{name}[{i}] = {value!r} is not a number: give a number or an empty cell"
                ) from None
    return values


def encode_rows(suffix: str, rows: Sequence[Row], scores: Mapping[str, Scores]) -> bytes:
    """Encode a table: all columns of the rows, then the scores.

    NaN becomes null in JSONL and Parquet and an empty cell in CSV. Lists and objects become JSON
    in the cells of a CSV file.

    Args:
        suffix: The format, one of `SUFFIXES`.
        rows: n rows.
        scores: Arrays of shape (n,) by column name.

    Raises:
        ValueError: The format can't hold a column: values of several types in Parquet; dates or
            infinity in JSON.
    """
    lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
    if suffix == ".parquet":
        return _encode_parquet(rows, lists)
    scored = [
        {**row, **{name: values[i] for name, values in lists.items()}} for i, row in enumerate(rows)
    ]
    if suffix == ".jsonl":
        return "".join(_json_line(row) for row in scored).encode()
    return _csv(_names([*rows, lists]), scored).encode()


def _parse_jsonl(text: str, path: Path) -> list[Row]:
    rows = []
    for number, line in numbered_lines(text):
        row = parse_json(line, path, number)
        if not isinstance(row, dict):
            raise ValueError(
                f"{path}:{number} = {line[:40]} is not a JSON object: give one object per line"
            )
        rows.append(row)
    return rows


def _parse_parquet(content: bytes, path: Path) -> list[Row]:
    pyarrow = import_extra("pyarrow", str(path))
    parquet = import_extra("pyarrow.parquet", str(path))
    try:
        return parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from None


def _value(rows: Sequence[Row], i: int, name: str) -> Any:
    if name not in rows[i]:
        raise ValueError(f"row {i} has no {name!r}, but the first row has: give it in all rows")
    return rows[i][name]


def _string(rows: Sequence[Row], i: int, name: str, key: str) -> str:
    value = _value(rows, i, name)
    if not isinstance(value, str):
        ignore = "" if key == "text" else f", or ignore the column with --columns.{key}=null"
        raise TypeError(
            f"{name}[{i}] = {value!r} is of type {type(value).__name__}: give strings{ignore}"
        )
    return value


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all column names in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _json_line(row: Row) -> str:
    cells = (f"{json.dumps(name, ensure_ascii=False)}: {_json(row[name], name)}" for name in row)
    return "{" + ", ".join(cells) + "}\n"


def _json(value: Any, name: str) -> str:
    """Encode a value of column `name`; NaN, which Parquet and Python's JSON allow, is null."""
    try:
        missing = isinstance(value, float) and np.isnan(value)
        return json.dumps(None if missing else value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"the column {name!r} has the value {str(value)[:40]}, which JSON cannot represent: "
            "write .parquet instead"
        ) from None


def _csv(names: Sequence[str], rows: Sequence[Row]) -> str:
    buffer = io.StringIO(newline="")
    minimal = csv.writer(buffer, lineterminator="\n")
    # Minimal quoting leaves a lone \r unquoted, and readers take it for a line end.
    quoting = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for cells in (names, *([_cell(row.get(name), name) for name in names] for row in rows)):
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoting if has_return else minimal).writerow(cells)
    return buffer.getvalue()


def _cell(value: Any, name: str) -> Any:
    return _json(value, name) if isinstance(value, dict | list) else value


def _encode_parquet(rows: Sequence[Row], scores: Mapping[str, Sequence[Any]]) -> bytes:
    pyarrow = import_extra("pyarrow", "a Parquet file")
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    arrays = {}
    for name in _names(rows):
        try:
            arrays[name] = pyarrow.array([row.get(name) for row in rows])
        except pyarrow.ArrowException as error:
            raise ValueError(
                f"the column {name!r} can't be stored in Parquet ({error}): write .jsonl instead"
            ) from None
    for name, values in scores.items():
        arrays[name] = pyarrow.array(values, type=pyarrow.float64())
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), buffer)
    return buffer.getvalue()
