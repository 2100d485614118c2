"""CSV files of results, long (one value a row) or wide (one system a row)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TypeAlias

from ctrlreward.commands.formats.parsing import CsvRow, decode, parse_csv
from ctrlreward.functional.reproducibility import Table

# Line number, study, metric, system, value.
_Cell: TypeAlias = tuple[int, str, str, str, float]

_SELECTION = re.compile(r"(?P<file>.+\.csv):(?P<cells>[^/\\=]+=[^=]*(?:,[^/\\=]+=[^=]*)*)")
_STUDY = "study"


def split_selection(name: str) -> tuple[Path, dict[str, str]]:
    """The path of `FILE.csv:column=value,…`, and the values that its rows must have."""
    match = _SELECTION.fullmatch(name)
    if match is None or Path(name).exists():
        return Path(name), {}
    cells = (cell.split("=", 1) for cell in match["cells"].split(","))
    return Path(match["file"]), {column.strip(): value.strip() for column, value in cells}


def read_csv(path: Path, wanted: Mapping[str, str]) -> tuple[list[str], list[CsvRow]]:
    """The header, and the rows that have the wanted cells.

    Raises:
        ValueError: The file is no CSV, it lacks a column, or no row is wanted.
    """
    header, rows = parse_csv(decode(path.read_bytes(), path), path)
    for column in wanted:
        _check_column(path, header, column)
    kept = [(n, row) for n, row in rows if all(row[c] == value for c, value in wanted.items())]
    if not kept:
        asked = ", ".join(f"{column} = {value}" for column, value in wanted.items())
        raise ValueError(f"{path} has no row{' with ' + asked if asked else ' beside the header'}")
    return header, kept


def studies(
    path: Path,
    header: Sequence[str],
    rows: Sequence[CsvRow],
    system_columns: Sequence[str],
    metric_columns: Sequence[str],
    single: str,
) -> Mapping[str, Table]:
    """Study → metric → system → value.

    A file with the column `value` is long: a row is one value. Any other is wide: a row is one
    system, and each column that names neither system nor study is a metric.

    Args:
        path: Of the file, for errors.
        header: Its columns.
        rows: Its rows.
        system_columns: Together they name the system.
        metric_columns: Together they name the metric, where the file is long.
        single: The system's name where there is no column for it.

    Raises:
        ValueError: A column is absent, a value is no number, or a value is there twice.
    """
    if tuple(system_columns) == ("system",) and "system" not in header:
        system_columns = ()
    for column in (*system_columns, *(metric_columns if "value" in header else ())):
        _check_column(path, header, column)
    cells = _long if "value" in header else _wide
    found: dict[str, dict[str, dict[str, float]]] = {}
    lines: dict[tuple[str, str, str], int] = {}
    for line, study, metric, system, value in cells(path, rows, system_columns, metric_columns):
        system = system or single
        first = lines.setdefault((study, metric, system), line)
        if first != line:
            raise ValueError(
                f"{path}:{line} gives {metric!r} of {system!r} again, after line {first}: name "
                f"the columns that tell them apart with --system_columns or --metric_columns "
                f"(there are {', '.join(header)}), or take rows with {path}:column=value"
            )
        found.setdefault(study, {}).setdefault(metric, {})[system] = value
    return found


def number(path: Path, line: int, column: str, text: str) -> float:
    """The number in a cell; an empty one is NaN.

    Raises:
        ValueError: It is no number.
    """
    try:
        return float(text) if text.strip() else nan
    except ValueError:
        raise ValueError(
            f"{path}:{line}: {column} = {text!r} is no number: give numbers, and name columns "
            "that hold none with --system_columns"
        ) from None


def _long(
    path: Path, rows: Sequence[CsvRow], systems: Sequence[str], metrics: Sequence[str]
) -> Iterator[_Cell]:
    for line, row in rows:
        value = number(path, line, "value", row["value"])
        yield line, row.get(_STUDY, ""), _joined(row, metrics), _joined(row, systems), value


def _wide(
    path: Path, rows: Sequence[CsvRow], systems: Sequence[str], _: Sequence[str]
) -> Iterator[_Cell]:
    for line, row in rows:
        for metric, text in row.items():
            if metric not in (*systems, _STUDY):
                value = number(path, line, metric, text)
                yield line, row.get(_STUDY, ""), metric, _joined(row, systems), value


def _joined(row: Mapping[str, str], columns: Sequence[str]) -> str:
    return " ".join(row[column] for column in columns)


def _check_column(path: Path, header: Sequence[str], column: str) -> None:
    if column not in header:
        raise ValueError(f"{path} has no column {column!r}: it has {', '.join(header)}")
