"""Columns of a table that scorers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlreward.failures import rows_named
from ctrlreward.samples import COLUMN_OF, JSON_KEYS, MissingColumn, Samples, as_samples
from ctrlreward.tables.rows import Row, Scores


@dataclass(frozen=True)
class Columns:
    """Column names in the file (null ignores a column).

    Only texts or outputs are required. A column under its default name is used if the file has it;
    a renamed column must exist.

    Args:
        text: Generated texts, prefix included.
        output: Generated texts without their prompts, which are joined to prefix or prompt, with a
            space where neither side has one. By default `output` or `completion`, if the file has
            one of them and no texts.
        prefix: The prefix that each text continues.
        label: The target attribute, such as a sentiment or topic; `sentiment,topic` for a column of
            each attribute.
        source: The input of a style transfer or a summary.
        reference: A human-written target, or in JSON a list of several.
        context: Knowledge that the text should use.
        history: The dialog before the text.
        prompt: The full prompt that the generator was given.
        group: Group ids; texts of one group answer the same prompt.
        answer_after: The end of a text's reasoning, `</think>`; what follows it is scored.
        unfinished: `score` or `fail`, for a text without it.
    """

    text: str = "text"
    output: str | None = None
    prefix: str | None = "prefix"
    label: str | None = "label"
    source: str | None = "source"
    reference: str | None = "reference"
    context: str | None = "context"
    history: str | None = "history"
    prompt: str | None = "prompt"
    group: str | None = "group"
    answer_after: str | None = "answer_after"
    unfinished: str | None = "unfinished"


def read_columns(columns: Columns, present: Sequence[str]) -> dict[str, str]:
    """Return the columns that scorers read, of those present: column of `Samples` → its name.

    Labels of several attributes have the names of their columns, `sentiment,topic`.
    """
    if columns.output and columns.text != "text":
        raise ValueError("columns.text includes the prompt, columns.output does not. Pass one.")
    names = dict(vars(columns))
    usual = [name for name in ("output", "completion") if name in present]
    if not columns.output and columns.text == "text" and "text" not in present and len(usual) == 1:
        names["output"] = usual[0]
    if names["output"]:
        names["text"] = None
    attributes = (columns.label or "").split(",")
    read = {}
    for key, name in names.items():
        if name in present or (key == "label" and {*attributes} <= {*present}):
            read["outputs" if key == "output" else COLUMN_OF[key]] = str(name)
        elif name not in (None, key) or name == "text":
            parts = attributes if key == "label" else [name]
            absent = next((part for part in parts if part not in present), name)
            outputs = ", or outputs, to be joined to their prompts, with --columns.output=COLUMN"
            raise ValueError(
                f"{key} is read from the column {absent!r}, but the file has only "
                f"{', '.join(present)}. Name another column with --columns.{key}=COLUMN"
                f"{outputs * (key == 'text')}."
            )
    return read


def to_samples(
    rows: Sequence[Row],
    columns: Columns,
    places: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
) -> Samples:
    """Return the columns that scorers read, of rows whose places are used in errors.

    A text that is null is empty, and an empty text has an empty prefix. An object, or a column of
    each attribute, is a label of several attributes. `label_map` maps the table's labels to the
    scorers'.
    """
    places = [f"row {i}" for i in range(len(rows))] if places is None else places
    read = read_columns(columns, list(rows[0]))
    label = read.get("labels", "")
    attributes = label.split(",") if label not in rows[0] and label else []
    known = {*vars(columns).values(), *read.values(), *attributes}
    for place, row in zip(places, rows, strict=True):
        for name in known & (row.keys() ^ rows[0].keys()):
            has, lacks = (place, "the first row") if name in row else ("the first row", place)
            raise ValueError(
                f"{lacks} does not have {name!r}, but {has} has it: a column must be in all rows, "
                "or its name null in --columns"
            )
    if label_map and "labels" not in read:
        raise ValueError(
            f"the label map needs the column {columns.label!r}, but the file has only "
            f"{', '.join(rows[0])}. Name the column of labels with --columns.label=COLUMN."
        )
    table: dict[str, Any] = {
        column: [row.get(name) for row in rows] for column, name in read.items()
    }
    if attributes:
        table["labels"] = [{name: row[name] for name in attributes} for row in rows]
    if "labels" in table:
        table["labels"] = [
            {k: None if v == "" else v for k, v in cell.items()} if isinstance(cell, dict) else cell
            for cell in table["labels"]
        ]
    texts = "texts" if "texts" in table else "outputs"
    table[texts] = ["" if cell is None else cell for cell in table[texts]]
    if "prefixes" in table:
        pairs = zip(table[texts], table["prefixes"], strict=True)
        table["prefixes"] = [prefix if str(text).strip() else "" for text, prefix in pairs]
    with rows_named(places, read):
        samples = Samples(**table)
        return as_samples(samples, label_map=label_map) if label_map else samples


@contextmanager
def explained_columns(present: Sequence[str]) -> Iterator[None]:
    """Turn a `MissingColumn` into a ValueError that says how to add the column to a file."""
    try:
        yield
    except MissingColumn as error:
        key, scorer = JSON_KEYS.get(error.column, error.column), error.reader.split()[0]
        raise ValueError(
            f"{error.reader} needs the column {key!r}, but the file has only {', '.join(present)}. "
            f"Add the column, or name another one with --columns.{key}=COLUMN. "
            f"--scorers.help={scorer} lists the options, also to leave this score out."
        ) from None


def require_column(rows: Sequence[Row], name: str) -> None:
    """Raise a ValueError, which lists the columns of the first row, if no row has a column."""
    if not any(name in row for row in rows):
        raise ValueError(f"No such column: {name!r}. The columns are {', '.join(rows[0])}")


def number_column(rows: Sequence[Row], name: str, places: Sequence[str] | None = None) -> Scores:
    """Return a column of numbers or booleans, shape (n,); NaN for an empty cell, null, or without.

    Raises:
        ValueError: No row has the column, or a value is not a number (names its place).
    """
    require_column(rows, name)
    cells = [row.get(name) for row in rows]
    return np.array(
        [
            number_of(cell, f"{places[i]}: {name}" if places else f"{name}[{i}]")
            for i, cell in enumerate(cells)
        ]
    )


def number_of(cell: Any, place: str) -> float:
    """Return the number or boolean of a cell, NaN if it is empty; a ValueError names its place."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return np.nan
    booleans: dict[Any, float] = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}
    try:
        return float(booleans.get(cell, cell))
    except (TypeError, ValueError):
        raise ValueError(f"{place} must be a number or an empty cell, got {cell!r}") from None
