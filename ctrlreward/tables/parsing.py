"""UTF-8 and CSV parsers whose errors name file and line."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import TypeAlias

import fsspec

from ctrlreward.arguments import did_you_mean

# Line number in the file, and the cells by column name.
CsvRow: TypeAlias = tuple[int, dict[str, str]]

_LONGEST_CELL = 2**31 - 1  # characters; the csv module's default is shorter than some documents


def cell_number(text: str, place: str, advice: str = "") -> float:
    """Return the number in a cell, NaN if it is empty; a ValueError names its place."""
    try:
        return float(text) if text.strip() else math.nan
    except ValueError:
        raise ValueError(f"{place} = {text!r} is not a number{advice}") from None


def read_bytes(source: Path | str) -> bytes:
    """Return the content of a file, by path or by a URL that fsspec opens."""
    if "://" in str(source):
        with fsspec.open(str(source), "rb") as file:
            return bytes(file.read())
    path = Path(source)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, must be a file")
    if not path.exists():
        raise no_such_file(path)
    return path.read_bytes()


def no_such_file(path: Path) -> FileNotFoundError:
    """Return the error for a path that doesn't exist, with the most similar name in its folder."""
    names = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = did_you_mean(path.name, names, path.with_name)
    return FileNotFoundError(f"No such file or folder: {path}{hint}")


def decode_utf8(content: bytes, path: Path | str) -> str:
    """Decode a UTF-8 file without its byte order mark; a ValueError names the first other line."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}:{line} is not UTF-8 text. Convert the file: iconv -f latin1 -t utf-8."
        ) from None


def parse_csv(text: str, path: Path | str, fill: bool = False) -> tuple[list[str], list[CsvRow]]:
    """Return the header and the rows of a CSV file.

    With `fill`, a short row has empty cells at its end, as in pandas, and a blank line is an empty
    cell in a file of one column; without, a short row is an error. Other blank lines are skipped.
    """
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    rows = []
    try:
        for cells in reader:
            place = f"{path}:{reader.line_num}"
            if not header:
                header = cells
                _check_header(header, place)
                continue
            if not cells and (len(header) > 1 or not fill):
                continue
            if len(cells) > len(header) or (len(cells) < len(header) and not fill):
                more = len(cells) > len(header)
                advice = "quote cells that contain commas" if more else "add the missing cells"
                raise ValueError(
                    f"{place} has {len(cells)} cells, but the header has {len(header)} columns "
                    f"({', '.join(header)}): {advice}"
                )
            cells += [""] * (len(header) - len(cells))
            rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num} is not valid CSV: {error}") from None
    return header, rows


def _check_header(header: list[str], place: str) -> None:
    if len(header) == 1 and (other := re.search(r"[;\t|]", header[0])):
        raise ValueError(
            f"{place} = {header[0][:40]} has columns separated by {other[0]!r}, must be separated "
            "by commas"
        )
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise ValueError(f"{place} has several columns {repeated[0]!r}. Rename all but one.")
