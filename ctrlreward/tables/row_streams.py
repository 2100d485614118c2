"""Rows of a JSONL, CSV or Parquet file, or of a folder of such files, one by one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from ctrlreward.extras import import_extra
from ctrlreward.files import parse_json
from ctrlreward.tables.locations import Location
from ctrlreward.tables.parsing import decode_utf8, read_csv

Row: TypeAlias = dict[str, Any]  # cells by column name


class PlacedRow(NamedTuple):
    """A row, the number of its file, and its place: `reviews.jsonl:417`, or a Parquet row."""

    file: int
    place: str
    cells: Row


SUFFIXES = (".jsonl", ".csv", ".parquet")


class RowStream:
    """Rows of a table, read again by each iteration; memory does not grow with their number.

    A folder has files of one format, whose rows are read in the order of the names.
    """

    def __init__(self, source: Location) -> None:
        self.source = source
        self.files = _tables_in(source) if source.is_folder() else [source]
        self.suffix = self.files[0].suffix
        check_suffix(self.files[0])
        if not source.exists():
            raise source.missing()

    def __str__(self) -> str:
        return str(self.source)

    def __iter__(self) -> Iterator[Row]:
        """Yield all rows; the values of a CSV file are strings."""
        for row in self.placed():
            yield row.cells

    def read(self) -> tuple[list[Row], list[str]]:
        """Return all rows, and the place of each."""
        placed = list(self.placed())
        return [row.cells for row in placed], [row.place for row in placed]

    def placed(self) -> Iterator[PlacedRow]:
        """Yield all rows with their places; see `__iter__`."""
        columns: list[str] = []
        for number, location in enumerate(self.files):
            name = str(location)
            with location.open() as file:
                for i, (line, row) in enumerate(read_table(file, name, self.suffix)):
                    if i == 0 and self.suffix != ".jsonl":  # rows of JSONL may differ
                        columns = columns or list(row)
                        if set(row) != set(columns):
                            raise ValueError(
                                f"{name} has the columns {', '.join(row)}, but "
                                f"{self.files[0]} has {', '.join(columns)}. All files must have "
                                "the same columns."
                            )
                    yield PlacedRow(number, f"{name}:{line}", row)


def open_rows(source: Location, target: Location) -> RowStream:
    """Return the rows of an input whose scores go to another file or folder."""
    if not source.exists():
        if not target.exists() or target.is_folder():
            raise source.missing()
        raise ValueError(
            f"No such file: {source}. The texts come first, then the output, as in `ctrlreward "
            f"score {target} {source}`."
        )
    if target.is_folder() and not source.is_folder():
        raise ValueError(f"{target} is a folder, but the scores of a file go to a file")
    if target.exists() and source.is_same(target):
        raise ValueError(f"{target} is the input. Choose another file for the scores.")
    if target.suffix or not source.is_folder():
        check_suffix(target)
    return RowStream(source)


def check_suffix(path: Path | Location) -> None:
    """Raise if a file's format is unknown or its package is missing."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}, got {path.suffix!r}")
    if path.suffix == ".parquet":
        import_extra("pyarrow", str(path))


def read_rows(path: Path) -> list[Row]:
    """Read a whole table; see `RowStream`."""
    return read_placed(path)[0]


def read_placed(path: Path) -> tuple[list[Row], list[str]]:
    """Read a whole table: its rows, and the place of each."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, must be a file")
    return RowStream(Location(path)).read()


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


def _tables_in(folder: Location) -> list[Location]:
    """Return the tables of a folder by name; hidden files and other formats are left out."""
    names = [name for name in folder.names() if not name.startswith((".", "_"))]
    tables = [file for name in names if (file := folder.child(name)).suffix in SUFFIXES]
    formats = sorted({file.suffix for file in tables})
    if len(formats) != 1:
        has = f"has files of several formats ({', '.join(formats)})" if formats else "has no tables"
        raise ValueError(
            f"{folder} is a folder and {has}, must be a file, or a folder of one format"
        )
    return tables
