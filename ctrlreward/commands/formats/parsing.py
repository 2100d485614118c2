"""Text files as commands read them: UTF-8, JSON and CSV, with errors that name file and line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

# Line number in the file, and its cells by column.
CsvRow: TypeAlias = tuple[int, dict[str, str]]

_LONGEST_CELL = 2**31 - 1  # of CSV; the library's own limit is shorter than some documents


def decode(content: bytes, path: Path, line: int = 1) -> str:
    """UTF-8 as text, without the mark that some programs begin a file with.

    Args:
        content: A file, or the part of it that begins at `line`.
        path: Of the file, for errors.
        line: From 1.

    Raises:
        ValueError: It is no UTF-8; names the line.
    """
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}:{line} is no UTF-8 text: convert the file, as with iconv -t utf-8"
        ) from None


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, without their ends, and their numbers from 1."""
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        yield number, line.rstrip("\n")


def parse_json(text: str, path: Path, first: int = 1) -> Any:
    """A JSON value; `first` is the number of the text's first line in the file.

    Raises:
        ValueError: It is none; names the line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first + error.lineno - 1
        raise ValueError(f"{path}:{line} is not JSON: {error.msg}") from None


def parse_csv(text: str, path: Path) -> tuple[list[str], list[CsvRow]]:
    """The header of a CSV file, and the rows below it.

    Raises:
        ValueError: The header repeats a column, or a row has not as many cells as the header or is
            no CSV; names the line.
    """
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    filled = filter(None, reader)  # a blank line is no row
    rows: list[CsvRow] = []
    try:
        header = next(filled, [])
        repeated = sorted({name for name in header if header.count(name) > 1})
        if repeated:
            raise ValueError(f"{path} has several columns {repeated[0]!r}: rename all but one")
        for cells in filled:
            if len(cells) != len(header):
                raise ValueError(
                    f"{path}:{reader.line_num} has not the {len(header)} columns of the header: "
                    f"{', '.join(header)}"
                )
            rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num} is no CSV: {error}") from None
    return header, rows
