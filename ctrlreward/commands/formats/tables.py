"""Columns of a table: which are texts for scorers, and which are numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.columns import JSON_KEYS, MissingColumn
from ctrlreward.commands.formats.row_streams import Row
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


@dataclass(frozen=True)
class Columns:
    """Column names in the file (null ignores a column).

    Only the text is required. A column under its default name is used if the file has it; a
    renamed column must exist.

    Args:
        text: Generated texts, prefix included.
        prefix: The prefix that each text continues.
        label: The target attribute, such as a sentiment or topic.
        source: The input of a style transfer or a summary.
        reference: A human-written target.
        context: Knowledge that the text should use.
        history: The dialog before the text.
        prompt: The full prompt that the generator was given.
        group: Group ids; texts of one group answer the same prompt.
    """

    text: str = "text"
    prefix: str | None = "prefix"
    label: str | None = "label"
    source: str | None = "source"
    reference: str | None = "reference"
    context: str | None = "context"
    history: str | None = "history"
    prompt: str | None = "prompt"
    group: str | None = "group"


def to_samples(
    rows: Sequence[Row],
    columns: Columns,
    first: int = 0,
    present: Sequence[str] | None = None,
) -> Samples:
    """Return the columns that scorers read.

    Args:
        rows: Rows of a table, or some that follow one another.
        columns: The columns to read.
        first: Number of the first of these rows in the table, for errors.
        present: Columns of the table; None takes those of the first of these rows.

    Raises:
        ValueError: The text column or a renamed column is missing (lists the file's columns), or
            a row lacks a column that the first row has.
        TypeError: A value is not a string; names the row.
    """
    present = list(rows[0] if present is None else present)
    read = {}
    for key, name in asdict(columns).items():
        if name in present:
            read[key] = name
        elif key == "text" or (name is not None and name != key):
            raise ValueError(
                f"there is no column {name!r} for {key}: the file has {', '.join(present)}; "
                f"name it with --columns.{key}=COLUMN"
            )
    return Samples(
        **{
            name: [_string(row, i, read[key], key) for i, row in enumerate(rows, first)]
            for name, key in JSON_KEYS.items()
            if key in read
        }
    )


@contextmanager
def explained_columns(present: Sequence[str]) -> Iterator[None]:
    """Say how a file can have a column that a scorer lacks; `Samples` says it for Python.

    Args:
        present: Columns of the file.

    Raises:
        ValueError: As raised inside, with this explanation if a column is absent.
    """
    try:
        yield
    except MissingColumn as error:
        key, scorer = JSON_KEYS[error.column], error.reader.split()[0]
        raise ValueError(
            f"{error.reader} needs a column {key!r}: the file has {', '.join(present)}. Add it, "
            f"name it with --columns.{key}=COLUMN, or choose other scores: --scorers.help={scorer} "
            "lists the options"
        ) from None


def number_column(rows: Sequence[Row], name: str) -> Scores:
    """Return a column of numbers, float64 of shape (n,); NaN for empty cells and null.

    Raises:
        ValueError: The column is missing (lists the file's columns), or a row lacks it or has
            a value that is not a number (names the row).
    """
    if name not in rows[0]:
        raise ValueError(f"there is no column {name!r}: the file has {', '.join(rows[0])}")
    values = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        value = _value(row, i, name)
        if value not in ("", None):
            try:
                values[i] = float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{name}[{i}] = {value!r} is not a number: give a number or an empty cell"
                ) from None
    return values


def _value(row: Row, i: int, name: str) -> Any:
    if name not in row:
        raise ValueError(f"row {i} has no {name!r}, but the first row has: give it in all rows")
    return row[name]


def _string(row: Row, i: int, name: str, key: str) -> str:
    value = _value(row, i, name)
    if not isinstance(value, str):
        ignore = "" if key == "text" else f", or ignore the column with --columns.{key}=null"
        raise TypeError(
            f"{name}[{i}] = {value!r} is of type {type(value).__name__}: give strings{ignore}"
        )
    return value
