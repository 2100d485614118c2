"""Rows of a JSONL, CSV or Parquet file, one by one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import fsspec

from ctrlreward.extras import import_extra
from ctrlreward.files import parse_json
from ctrlreward.tables.parsing import decode_utf8, no_such_file, read_csv

Row: TypeAlias = dict[str, Any]  # cells by column name


SUFFIXES = (".jsonl", ".csv", ".parquet")


def placed_rows(source: str | Path) -> Iterator[tuple[str, Row]]:
    """Yield place and cells of each row of a table, by path or by a URL that fsspec opens.

    A place is `reviews.jsonl:417`, or the number of a Parquet row; the values of a CSV file are
    strings.
    """
    check_suffix(Path(source))
    with _opened(str(source)) as file:
        for line, row in read_table(file, str(source), Path(source).suffix):
            yield f"{source}:{line}", row


def _opened(source: str) -> BinaryIO:
    if "://" in source:
        return cast(BinaryIO, fsspec.open(source, "rb").open())
    path = Path(source)
    if path.is_dir():
        raise ValueError(f"{source} is a folder, must be a file")
    if not path.exists():
        raise no_such_file(path)
    return path.open("rb")


def check_suffix(path: Path) -> None:
    """Raise if a file's format is unknown or its package is missing."""
    if path.suffix not in SUFFIXES:
        if path.is_dir():
            raise ValueError(f"{path} is a folder, must be a file")
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}, got {path.suffix!r}")
    if path.suffix == ".parquet":
        import_extra("pyarrow", str(path))


def read_rows(source: str | Path) -> list[Row]:
    """Read a whole table; see `placed_rows`."""
    return [row for _, row in placed_rows(source)]


def read_placed(source: str | Path) -> tuple[list[Row], list[str]]:
    """Read a whole table: its rows, and the place of each."""
    places, rows = zip(*placed_rows(source), strict=True)
    return list(rows), list(places)


def parse_rows(content: bytes, path: Path) -> list[Row]:
    """Parse a table in the format of the file's suffix; see `read_table`."""
    check_suffix(path)
    return [row for _, row in read_table(io.BytesIO(content), str(path), path.suffix)]


def read_table(file: BinaryIO, path: str, suffix: str) -> Iterator[tuple[int, Row]]:
    """Yield line and cells of each row of a file; the values of a CSV file are strings."""
    rows: Iterator[tuple[int, Row]]
    if suffix == ".parquet":
        rows = enumerate(parquet_rows(file, path), 1)
    elif suffix == ".csv":
        rows = read_csv(_decoded_lines(file, path, newline=""), path)[1]
    else:
        rows = _json_rows(file, path)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} has no rows")
    yield first
    yield from rows


def _decoded_lines(file: BinaryIO, path: Path | str, newline: str | None) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line ends, without a byte order mark."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)
    try:
        yield from text
    except UnicodeDecodeError:
        file.seek(0)  # the decoder does not count lines
        for number, line in enumerate(file, 1):
            decode_utf8(line, path, number)
        raise
    finally:
        if not file.closed:  # closed by the caller before the end
            text.detach()


def _object(pairs: list[tuple[str, Any]]) -> Row:
    """Return an object of JSON; a KeyError has a name that is repeated."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return row


_ROW = json.JSONDecoder(object_pairs_hook=_object)


def _json_rows(file: BinaryIO, path: str) -> Iterator[tuple[int, Row]]:
    """Yield the objects of non-blank lines."""
    for number, line in enumerate(_decoded_lines(file, path, newline=None), 1):
        if line.isspace():
            continue
        try:
            row = _ROW.decode(line)
        except KeyError as error:
            raise ValueError(
                f"{path}:{number} has several values of {error}. Keep one of them."
            ) from None
        except (ValueError, RecursionError):
            try:
                row = parse_json(line.rstrip("\n"), path, number)  # which names the line
            except ValueError as error:
                raise ValueError(f"{error}; a file has one object per line") from None
        if not isinstance(row, dict):
            start = line.rstrip("\n")[:40]
            raise ValueError(
                f"{path}:{number} = {start} is not a JSON object; a file has one object per line"
            )
        yield number, row


def parquet_rows(file: BinaryIO, path: str) -> Iterator[Row]:
    """Yield the rows of a Parquet file; a ValueError names a damaged one."""
    pyarrow = import_extra("pyarrow", path)
    parquet = import_extra("pyarrow.parquet", path)
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from None
