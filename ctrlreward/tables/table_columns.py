"""Columns of a table that scorers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlreward.arguments import kind_of
from ctrlreward.failures import rows_named
from ctrlreward.samples import (
    COLUMN_OF,
    JSON_KEYS,
    MissingColumn,
    Samples,
    as_samples,
    attribute_label,
)
from ctrlreward.tables.row_streams import Row
from ctrlreward.tables.table_writing import Scores


@dataclass(frozen=True)
class Columns:
    """Column names in the file (null ignores a column).

    Only the text is required. A column under its default name is used if the file has it; a
    renamed column must exist.

    Args:
        text: Generated texts, prefix included.
        prefix: The prefix that each text continues.
        label: The target attribute, such as a sentiment or topic; `sentiment,topic` for a column of
            each attribute.
        source: The input of a style transfer or a summary.
        reference: A human-written target, or in JSON a list of several.
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
    places: Sequence[str] | None = None,
    present: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
) -> Samples:
    """Return the columns that scorers read, of rows whose places are used in errors.

    A text that is null is empty, and an empty text has an empty prefix. An object, or a column of
    each attribute, is a label of several attributes. `present` are the columns of the table, None
    for the columns of the first row. `label_map` maps the table's labels to the scorers'.
    """
    places = [f"row {i}" for i in range(len(rows))] if places is None else places
    present = list(rows[0] if present is None else present)
    read = read_columns(columns, present)
    keys = {name: key for key, name in vars(columns).items() if name is not None}
    attributes = _attributes(columns, present)
    keys |= dict.fromkeys(attributes, "label")
    expected = keys.keys() & set(present)
    for place, row in zip(places, rows, strict=True):
        if keys.keys() & row.keys() != expected:
            name = next(iter((keys.keys() & row.keys()) ^ expected))
            has, lacks = (place, "the first row") if name in row else ("the first row", place)
            raise ValueError(
                f"{lacks} does not have {name!r}, but {has} has it, must be in all rows"
                f"{_or_ignore(keys[name])}"
            )
    if label_map and "labels" not in read:
        raise ValueError(
            f"the label map needs the column {columns.label!r}, but the file has only "
            f"{', '.join(present)}. Name the column of labels with --columns.label=COLUMN."
        )
    table: dict[str, list[Any]] = {
        column: [
            _label(row[name], place, name)
            if column == "labels" and isinstance(row[name], dict)
            else _cell(row[name], place, name, column)
            for place, row in zip(places, rows, strict=True)
        ]
        for column, name in read.items()
        if name in present
    }
    if attributes:
        table["labels"] = [
            _label({name: row[name] for name in attributes}, place, columns.label)
            for place, row in zip(places, rows, strict=True)
        ]
    if "prefixes" in table:
        pairs = zip(table["texts"], table["prefixes"], strict=True)
        table["prefixes"] = [prefix if text.strip() else "" for text, prefix in pairs]
    with rows_named(places, read):
        samples = Samples(**table)
        return as_samples(samples, label_map=label_map) if label_map else samples


def read_columns(columns: Columns, present: Sequence[str]) -> dict[str, str]:
    """Return the columns that scorers read, of those present: column of `Samples` → its name."""
    read = {}
    for key, name in vars(columns).items():
        if name in present or (key == "label" and _attributes(columns, present)):
            read[COLUMN_OF[key]] = name
        elif key == "text" or (name is not None and name != key):
            names = name.split(",") if name and key == "label" else [name]
            absent = next((each for each in names if each not in present), name)
            raise ValueError(
                f"{key} is read from the column {absent!r}, but the file has only "
                f"{', '.join(present)}. Name another column with --columns.{key}=COLUMN."
            )
    return read


def require_column(rows: Sequence[Row], name: str, advice: str = "") -> None:
    """Raise a ValueError, which lists the columns of the first row, if no row has a column."""
    if not any(name in row for row in rows):
        raise ValueError(f"No such column: {name!r}. The columns are {', '.join(rows[0])}{advice}")


def number_column(rows: Sequence[Row], name: str, places: Sequence[str] | None = None) -> Scores:
    """Return a column of numbers, shape (n,); NaN for an empty cell, null, or a row without it.

    Raises:
        ValueError: No row has the column, or a value is not a number (names its place).
    """
    require_column(rows, name)
    values = np.full(len(rows), np.nan)
    for i, cell in enumerate(row.get(name) for row in rows):
        try:
            values[i] = np.nan if cell in ("", None) else float(cell)
        except (TypeError, ValueError):
            item = f"{places[i]}: {name}" if places else f"{name}[{i}]"
            raise ValueError(f"{item} must be a number or an empty cell, got {cell!r}") from None
    return values


@contextmanager
def explained_columns(present: Sequence[str]) -> Iterator[None]:
    """Turn a `MissingColumn` into a ValueError that says how to add the column to a file."""
    try:
        yield
    except MissingColumn as error:
        key, scorer = JSON_KEYS[error.column], error.reader.split()[0]
        raise ValueError(
            f"{error.reader} needs the column {key!r}, but the file has only {', '.join(present)}. "
            f"Add the column, or name another one with --columns.{key}=COLUMN. "
            f"--scorers.help={scorer} lists the options, also to leave this score out."
        ) from None


def _attributes(columns: Columns, present: Sequence[str]) -> list[str]:
    """Return the columns of `sentiment,topic`, one per attribute; empty for a single column."""
    names = (columns.label or "").split(",")
    several = columns.label not in present and len(names) > 1 and {*names} <= {*present}
    return names if several else []


def _label(targets: Mapping[str, Any], place: str, name: str | None) -> str:
    """Return the label of several attributes."""
    cells = {
        attribute: _cell(cell, place, attribute, "labels")
        for attribute, cell in targets.items()
        if cell not in ("", None)
    }
    try:
        return attribute_label(cells)
    except ValueError as error:
        raise ValueError(f"{place}: {name}: {error}") from None


def _cell(value: Any, place: str, name: str, column: str) -> Any:
    """Return a cell of a column of `Samples`."""
    if isinstance(value, str) or (column in ("references", "prompts") and isinstance(value, list)):
        return value
    if value is None and column == "texts":
        return ""
    if column in ("labels", "groups") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TypeError(
        f"{place}: {name} must be a string, got {value!r}, {kind_of(value)}"
        f"{_or_ignore(JSON_KEYS[column])}"
    )


def _or_ignore(key: str) -> str:
    return "" if key == "text" else f", or ignore the column with --columns.{key}=null"
