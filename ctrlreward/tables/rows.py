"""Rows of a JSONL, CSV or Parquet file, read and written; errors name file and line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.extras import import_extra
from ctrlreward.files import none_for_nan, parse_json, without_nan

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
        encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
        raise ValueError(
            f"{path}:{line} is not UTF-8 text. Convert the file: iconv -f {encoding} -t utf-8."
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
    lines = parse_table(read_bytes(source), str(source), shard)
    return [row for _, row in lines], [f"{source}:{line}" for line, _ in lines]


def parse_table(content: bytes, name: str, shard: str | None = None) -> list[tuple[int, Row]]:
    """Return line and cells of each row, or of a shard's, by the suffix of a file's name."""
    lines: list[tuple[int, Row]]
    if name.endswith(".parquet"):
        lines = parquet_rows(content, name, shard)
    elif name.endswith(".csv"):
        all_lines = parse_csv(decode_utf8(content, name), name)
        lines = [*all_lines[_rows_of(shard, len(all_lines))]]
    else:
        lines = _jsonl_rows(content, name, shard)
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
        _check_names(header, f"{path}:{reader.line_num}")
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


def _jsonl_rows(content: bytes, path: str, shard: str | None) -> list[tuple[int, Row]]:
    """Return line and value of each line that is not blank; of a shard, no other line is parsed."""

    def lines() -> Iterator[tuple[int, str]]:
        numbered = enumerate(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig"), 1)
        return ((number, text) for number, line in numbered if (text := line.strip()))

    try:
        rows = _rows_of(shard, sum(1 for _ in lines()) if shard else 0)
        own = islice(lines(), rows.start, rows.stop)
        return [(number, parse_json(text, path, number)) for number, text in own]
    except UnicodeDecodeError:
        decode_utf8(content, path)  # names the line
        raise


def parquet_rows(content: bytes, path: str, shard: str | None = None) -> list[tuple[int, Row]]:
    """Return number and cells of each row of a shard; a ValueError names a damaged file."""
    pyarrow, parquet = (import_extra(name, path) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(content))
        _check_names(file.schema_arrow.names, path)
        first, stop, _ = _rows_of(shard, n := file.metadata.num_rows).indices(n)
        cells: list[Row] = []
        read = 0
        for batch in file.iter_batches():
            cells += batch[max(first - read, 0) : max(stop - read, 0)].to_pylist()
            read += batch.num_rows
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from None
    return [*enumerate(cells, first + 1)]


def parquet_types(source: Path | str) -> dict[str, Any]:
    """Return the Arrow type of each column of a Parquet file."""
    pyarrow, parquet = (import_extra(name, str(source)) for name in ("pyarrow", "pyarrow.parquet"))
    remote = "://" in str(source)
    # Of a local file, the footer alone is read.
    schema = parquet.read_schema(pyarrow.BufferReader(read_bytes(source)) if remote else source)
    return dict(zip(schema.names, schema.types, strict=True))


def _check_names(names: Sequence[str], place: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{place} has several columns {name!r}")


def _rows_of(shard: str | None, rows: int) -> slice:
    """Return the rows of a shard, such as `2/4`; all for None."""
    if not shard:
        return slice(None)
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

    Parquet columns have the `types` of `parquet_types`, or a type that fits the values.

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
