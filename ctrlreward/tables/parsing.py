"""UTF-8 and CSV parsers whose errors name file and line."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ctrlreward.arguments import did_you_mean

# Line number in the file, and the cells by column name.
CsvRow: TypeAlias = tuple[int, dict[str, str]]

_LONGEST_CELL = 2**31 - 1  # characters; the csv module's default is shorter than some documents

# What a spreadsheet runs: a text that begins so, after apostrophes of ours or of the text.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def formula_free(text: str) -> str:
    """Return a cell that no spreadsheet runs: a formula gets an apostrophe, a number is kept."""
    if not _FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def cell_text(cell: str) -> str:
    """Return the text of a cell, without the apostrophe of `formula_free`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def cell_number(text: str, place: str, advice: str = "") -> float:
    """Return the number in a cell, NaN if it is empty; a ValueError names its place."""
    try:
        return float(text) if text.strip() else math.nan
    except ValueError:
        raise ValueError(f"{place} = {text!r} is not a number{advice}") from None


def csv_header(names: Sequence[str]) -> str:
    r"""Return the first line of a CSV file of this package: its last name alone is in quotes.

    By that the file is known, and its apostrophes are removed. Other programs write names with
    quotes where they need them, or all names.
    """
    last = len(names) - 1
    cells = [
        '"' + name.replace('"', '""') + '"' if i == last or re.search(r'[,"\r\n]', name) else name
        for i, name in enumerate(names)
    ]
    return ",".join(cells) + "\n"


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
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


# First bytes of files of other kinds.
_STARTS = {
    b"\xff\xfe": "UTF-16. Convert the file: iconv -f utf-16 -t utf-8.",
    b"\x1f\x8b": "compressed by gzip. Unpack it with gunzip.",
    b"PK": "a zip archive, or a spreadsheet. Unpack it, or save it as CSV.",
}


def decode_utf8(content: bytes, path: Path | str, line: int = 1) -> str:
    """Decode a UTF-8 file, or a part of it that starts at a line; drop a byte order mark."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        for start, what in _STARTS.items() if line == 1 else ():
            if content.startswith(start):
                raise ValueError(f"{path} is {what}") from None
        line += content.count(b"\n", 0, error.start)
        raise ValueError(
            f"{path}:{line} is not UTF-8 text. Convert the file: iconv -f latin1 -t utf-8."
        ) from None


def parse_csv(text: str, path: Path) -> tuple[list[str], list[CsvRow]]:
    """Parse a CSV file of numbers; a short row is an error, and blank lines are skipped."""
    header, rows = read_csv(io.StringIO(text, newline=""), path, fill=False)
    return header, list(rows)


def read_csv(
    lines: Iterable[str], path: Path | str, fill: bool = True
) -> tuple[list[str], Iterator[CsvRow]]:
    """Read the header of a CSV file, and its rows one by one.

    With `fill`, a short row has empty cells at its end, as in pandas. A blank line is an empty cell
    in a file of one column, and skipped in others.
    """
    csv.field_size_limit(_LONGEST_CELL)
    read: list[str] = []

    def noted() -> Iterator[str]:
        for line in lines:
            if not names:
                read.append(line)
            yield line

    names: list[str] = []
    reader = csv.reader(noted(), strict=True)
    records = _records(reader, path)
    names = next(filter(None, records), [])
    # Of one column, the header of a program that quotes all names is the same.
    line = "".join(read).lstrip("\r\n").replace("\r\n", "\n")
    ours = len(names) > 1 and line == csv_header(names)
    text_of = cell_text if ours else str
    header = [text_of(cell) for cell in names]
    if len(header) == 1 and (other := re.search(r"[;\t|]", header[0])):
        start = header[0][:40]
        raise ValueError(
            f"{path}:{reader.line_num} = {start} has columns separated by {other[0]!r}, must be "
            "separated by commas"
        )
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path}:{reader.line_num} has several columns {repeated[0]!r}. Rename all but one."
        )

    def rows() -> Iterator[CsvRow]:
        for cells in records:
            if not cells and (len(header) > 1 or not fill):
                continue
            if len(cells) > len(header) or (len(cells) < len(header) and not fill):
                more = len(cells) > len(header)
                advice = "quote cells that contain commas" if more else "add the missing cells"
                raise ValueError(
                    f"{path}:{reader.line_num} has {len(cells)} cells, but the header has "
                    f"{len(header)} columns ({', '.join(header)}): {advice}"
                )
            cells = cells + [""] * (len(header) - len(cells))
            yield reader.line_num, dict(zip(header, map(text_of, cells), strict=True))

    return header, rows()


def _records(reader: Any, path: Path | str) -> Iterator[list[str]]:
    """Yield the cells of each line, none of a blank one."""
    try:
        yield from reader
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num} is not valid CSV: {error}") from None
