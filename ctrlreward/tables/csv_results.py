"""CSV files of results: long (one value per row) or wide (one system per row)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path

from ctrlreward.functional.reproducibility import Table
from ctrlreward.tables.parsing import CsvRow, decode_utf8, parse_csv

SINGLE_SYSTEM = "run"  # name of the system where the results name none

_SELECTION = re.compile(r"(?P<file>.+\.csv):(?P<cells>[^/\\=]+=[^=]*(?:,[^/\\=]+=[^=]*)*)")
_STUDY = "study"


def split_selection(name: str) -> tuple[Path, dict[str, str]]:
    """Split `FILE.csv:column=value,…` into the path and the values of the rows to keep."""
    match = _SELECTION.fullmatch(name)
    if match is None or Path(name).exists():
        return Path(name), {}
    cells = (cell.split("=", 1) for cell in match["cells"].split(","))
    return Path(match["file"]), {column.strip(): value.strip() for column, value in cells}


def read_selected_rows(path: Path, selection: Mapping[str, str]) -> tuple[list[str], list[CsvRow]]:
    """Read the header of a CSV file and the rows that have the selected values, by column.

    Raises:
        ValueError: The file is not CSV, lacks a column of the selection, or no row matches.
    """
    header, rows = parse_csv(decode_utf8(path.read_bytes(), path), path)
    for column in selection:
        _require_column(path, header, column)
    kept = [(n, row) for n, row in rows if all(row[c] == v for c, v in selection.items())]
    if not kept:
        condition = ", ".join(f"{column} = {value}" for column, value in selection.items())
        where = f"with {condition}" if condition else "below the header"
        raise ValueError(f"{path} has no rows {where}")
    return header, kept


def to_studies(
    path: Path,
    header: Sequence[str],
    rows: Sequence[CsvRow],
    system_columns: Sequence[str],
    metric_columns: Sequence[str],
) -> Mapping[str, Table]:
    """Arrange the results of a file as study → metric → system → value.

    A file with a column `value` is long: each row is one value. Any other file is wide: each row is
    one system, and each column that names neither system nor study is a metric. A column `study`
    is optional in both.

    Args:
        path: The file, for errors.
        header: Its columns.
        rows: Its rows.
        system_columns: Columns whose cells, joined by spaces, name the system. The default
            `("system",)` may be missing; the system is then `SINGLE_SYSTEM`.
        metric_columns: Columns of a long file whose cells, joined by spaces, name the metric.

    Raises:
        ValueError: A column is missing, a value is not a number, or two rows have values for the
            same study, metric and system.
    """
    if tuple(system_columns) == ("system",) and "system" not in header:
        system_columns = ()
    is_long = "value" in header
    for column in (*system_columns, *(metric_columns if is_long else ())):
        _require_column(path, header, column)
    studies: dict[str, dict[str, dict[str, float]]] = {}
    lines: dict[tuple[str, str, str], int] = {}
    for line, row in rows:
        study = row.get(_STUDY, "")
        system = " ".join(row[column] for column in system_columns) or SINGLE_SYSTEM
        columns = ["value"] if is_long else [c for c in row if c not in (*system_columns, _STUDY)]
        for column in columns:
            metric = " ".join(row[c] for c in metric_columns) if is_long else column
            value = parse_number(path, line, column, row[column])
            first = lines.setdefault((study, metric, system), line)
            if first != line:
                raise ValueError(
                    f"{path}:{line} repeats {metric!r} of {system!r} from line {first}: name the "
                    f"columns that distinguish them with --system_columns or --metric_columns (of "
                    f"{', '.join(header)}), or select rows with {path}:column=value"
                )
            studies.setdefault(study, {}).setdefault(metric, {})[system] = value
    return studies


def parse_number(path: Path, line: int, column: str, text: str) -> float:
    """Parse the number in a cell, NaN if it is empty; raise a ValueError with its line."""
    try:
        return float(text) if text.strip() else nan
    except ValueError:
        raise ValueError(
            f"{path}:{line}: {column} = {text!r} is not a number: give numbers, and name the "
            "columns that hold text with --system_columns"
        ) from None


def _require_column(path: Path, header: Sequence[str], column: str) -> None:
    if column not in header:
        raise ValueError(f"{path} has no column {column!r}: it has {', '.join(header)}")
