"""Rows of a JSONL, CSV or Parquet file, read and written; errors name file and line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.extras import import_extra
from ctrlreward.files import json_lines, none_for_nan, without_nan

Row: TypeAlias = dict[str, Any]  # cells by column name
CsvRow: TypeAlias = tuple[int, dict[str, str]]  # line in the file, cells by column name
Scores = npt.NDArray[np.float64]

SUFFIXES = (".jsonl", ".csv", ".parquet")

_LONGEST_CELL = 2**31 - 1  # characters; the csv module's default is shorter than some documents


def check_suffix(path: Path) -> None:
    """Raise if a file's format is unknown or its package is missing."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}, got {path.suffix!r}")
    if path.suffix == ".parquet":
        import_extra("pyarrow", str(path))


def read_bytes(source: Path | str) -> bytes:
    """Return the content of a file, by path or by a URL that fsspec opens."""
    if "://" in str(source):
        import fsspec

        try:
            with fsspec.open(str(source), "rb") as file:
                return bytes(file.read())
        except FileNotFoundError:
            message = f"{source} does not exist, or its server does not answer"
            raise FileNotFoundError(message) from None
    return Path(source).read_bytes()


def decode_utf8(content: bytes, path: Path | str) -> str:
    """Decode a UTF-8 file without its byte order mark; a ValueError names the first other line."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}:{line} is not UTF-8 text. Convert the file: iconv -f latin1 -t utf-8."
        ) from None


def read_rows(source: str | Path) -> list[Row]:
    """Return the rows of a table; see `read_placed`."""
    return read_placed(source)[0]


def read_placed(source: str | Path, shard: str | None = None) -> tuple[list[Row], list[str]]:
    """Return the rows of a table, and the place of each; by path or by a URL that fsspec opens.

    A place is `reviews.jsonl:417`, or the number of a Parquet row; the values of a CSV file are
    strings. The shard `2/4` is the second of four parts of the rows. A file without rows is a
    ValueError.
    """
    check_suffix(Path(source))
    lines = parse_table(read_bytes(source), str(source))
    if shard:
        lines = lines[_rows_of(shard, len(lines))]
    return [row for _, row in lines], [f"{source}:{line}" for line, _ in lines]


def parse_table(content: bytes, name: str) -> list[tuple[int, Row]]:
    """Return line and cells of each row, by the suffix of a file's name."""
    lines: list[tuple[int, Row]]
    if name.endswith(".parquet"):
        lines = parquet_rows(content, name)
    elif name.endswith(".csv"):
        lines = parse_csv(decode_utf8(content, name), name)
    else:
        lines = [*json_lines(io.StringIO(decode_utf8(content, name), newline=None), name)]
    for number, row in lines:
        if not isinstance(row, dict):
            raise ValueError(
                f"{name}:{number} = {str(row)[:40]} is not an object: one is needed in each line"
            )
    if not lines:
        raise ValueError(f"{name} has no rows")
    return lines


def parse_csv(text: str, path: Path | str) -> list[CsvRow]:
    """Return the rows of a CSV file.

    As in pandas, a short row has empty cells at its end, and a blank line is an empty cell in a
    file of one column, otherwise skipped.
    """
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next((cells for cells in reader if cells), [])
        for name in header:
            if header.count(name) > 1:
                raise ValueError(f"{path}:{reader.line_num} has several columns {name!r}")
        if len(header) == 1 and (other := re.search(r"[;\t|]", header[0])):
            raise ValueError(
                f"{path} must have columns separated by commas, got {other[0]!r} in {header[0]!r}"
            )
        rows = [(reader.line_num, cells) for cells in reader if cells or len(header) < 2]
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num} is not valid CSV: {error}") from None
    for line, cells in rows:
        if cells == header and len(header) > 1:
            raise ValueError(f"{path}:{line} is the header again: join files without their headers")
        if len(cells) > len(header):
            raise ValueError(
                f"{path}:{line} has {len(cells)} cells, but the header has {len(header)} columns "
                f"({', '.join(header)}): quote cells that contain commas"
            )
    return [(line, dict(zip_longest(header, cells, fillvalue=""))) for line, cells in rows]


def parquet_rows(content: bytes, path: str) -> list[tuple[int, Row]]:
    """Return number and cells of each row; a ValueError names a damaged file."""
    pyarrow, parquet = (import_extra(name, path) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        table = parquet.read_table(pyarrow.BufferReader(content))
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from None
    return [*enumerate(table.to_pylist(), 1)]


def parquet_types(source: Path | str) -> dict[str, Any]:
    """Return the Arrow type of each column of a Parquet file."""
    content = import_extra("pyarrow", str(source)).BufferReader(read_bytes(source))
    schema = import_extra("pyarrow.parquet", str(source)).read_schema(content)
    return dict(zip(schema.names, schema.types, strict=True))


def _rows_of(shard: str, rows: int) -> slice:
    """Return the rows of a shard, such as `2/4`."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    i, n = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= i <= n <= rows:
        raise ValueError(f"shard must be from 1/n to n/n, n at most {rows} rows, got {shard!r}")
    return slice(rows * (i - 1) // n, rows * i // n)


def encode_rows(
    suffix: str,
    rows: Sequence[Row],
    scores: Mapping[str, Scores],
    types: Mapping[str, Any] | None = None,
) -> bytes:
    r"""Encode a table: all columns of n rows, then the scores, arrays of shape (n,) by name.

    In Parquet, columns have the `types` of `parquet_types`, or else those of their values.

    NaN becomes null, in CSV an empty cell. Lists and objects are JSON in a cell of CSV. What JSON
    lacks, such as a date, becomes text, and infinity null. An unpaired surrogate, which UTF-8 can't
    encode, becomes its escape: `\ud800`.

    Raises:
        ValueError: Parquet can't hold a column.
    """
    names = list(dict.fromkeys([*(name for row in rows for name in row), *scores]))
    columns = {name: none_for_nan(values) for name, values in scores.items()}
    table = [
        {**row, **{k: column[i] for k, column in columns.items()}} for i, row in enumerate(rows)
    ]
    if suffix == ".parquet":
        types = {**(types or {}), **dict.fromkeys(scores, "float64")}
        return _parquet({name: [row.get(name) for row in table] for name in names}, types)
    if suffix == ".jsonl":
        return "".join(_json(row) + "\n" for row in table).encode(errors="backslashreplace")
    lines: list[list[Any]] = [
        [
            _json(cell) if isinstance(cell, dict | list) else without_nan(cell)
            for cell in map(row.get, names)
        ]
        for row in table
    ]
    # Minimal quoting leaves a lone \r unquoted, and readers treat it as a line end.
    returns = any("\r" in cell for line in [names, *lines] for cell in line if type(cell) is str)
    buffer = io.StringIO(newline="")
    dialect: Any = {"quoting": csv.QUOTE_ALL} if returns else {}
    csv.writer(buffer, lineterminator="\n", **dialect).writerows([names, *lines])
    return buffer.getvalue().encode(errors="backslashreplace")


def _json(value: Any) -> str:
    return json.dumps(without_nan(value), ensure_ascii=False, default=str)


def _parquet(columns: Mapping[str, Sequence[Any]], types: Mapping[str, Any]) -> bytes:
    pyarrow, parquet = (
        import_extra(name, "a Parquet file") for name in ("pyarrow", "pyarrow.parquet")
    )
    arrays = {}
    for name, cells in columns.items():
        escaped = [
            cell.encode(errors="backslashreplace").decode() if isinstance(cell, str) else cell
            for cell in cells
        ]
        try:
            arrays[name] = pyarrow.array(escaped, types.get(name))
            pyarrow.field(name, arrays[name].type)
        except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
            raise ValueError(
                f"the column {name!r} can't be stored in Parquet ({error}). Write .jsonl instead."
            ) from None
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()
