"""Rows of a JSONL, CSV or Parquet file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ctrlreward.extras import import_extra
from ctrlreward.files import parse_json
from ctrlreward.tables.parsing import decode_utf8, parse_csv, read_bytes

Row: TypeAlias = dict[str, Any]  # cells by column name

SUFFIXES = (".jsonl", ".csv", ".parquet")


def check_suffix(path: Path) -> None:
    """Raise if a file's format is unknown or its package is missing."""
    if path.suffix not in SUFFIXES:
        if path.is_dir():
            raise ValueError(f"{path} is a folder, must be a file")
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}, got {path.suffix!r}")
    if path.suffix == ".parquet":
        import_extra("pyarrow", str(path))


def read_rows(source: str | Path) -> list[Row]:
    """Return the rows of a table; see `read_placed`."""
    return read_placed(source)[0]


def read_placed(source: str | Path) -> tuple[list[Row], list[str]]:
    """Return the rows of a table, and the place of each; by path or by a URL that fsspec opens.

    A place is `reviews.jsonl:417`, or the number of a Parquet row; the values of a CSV file are
    strings. A file without rows is a ValueError.
    """
    check_suffix(Path(source))
    lines = parse_table(read_bytes(source), str(source))
    return [row for _, row in lines], [f"{source}:{line}" for line, _ in lines]


def parse_table(content: bytes, name: str) -> list[tuple[int, Row]]:
    """Return line and cells of each row, in the format of the suffix of a file's name."""
    lines: list[tuple[int, Row]]
    if name.endswith(".parquet"):
        lines = [*enumerate(parquet_rows(io.BytesIO(content), name), 1)]
    elif name.endswith(".csv"):
        lines = parse_csv(decode_utf8(content, name), name, fill=True)[1]
    else:
        text = io.StringIO(decode_utf8(content, name), newline=None)
        lines = [
            (number, parse_json(line.rstrip("\n"), name, number))
            for number, line in enumerate(text, 1)
            if not line.isspace()
        ]
    for number, row in lines:
        if not isinstance(row, dict):
            raise ValueError(
                f"{name}:{number} = {str(row)[:40]} is not an object: one is needed in each line"
            )
    if not lines:
        raise ValueError(f"{name} has no rows")
    return lines


def parquet_rows(file: BinaryIO, path: str) -> Iterator[Row]:
    """Yield the rows of a Parquet file; a ValueError names a damaged one."""
    pyarrow = import_extra("pyarrow", path)
    parquet = import_extra("pyarrow.parquet", path)
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} can't be read as Parquet: {error}") from None
