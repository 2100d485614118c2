"""Columns of samples in lists, records, mappings and data frames."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Column of `Samples` → key in a record of one sample.
JSON_KEYS = {
    "texts": "text",
    "prefixes": "prefix",
    "labels": "label",
    "sources": "source",
    "references": "reference",
    "contexts": "context",
    "histories": "history",
    "prompts": "prompt",
    "groups": "group",
}

# Column of `Samples`, by its own name and by its key in a record.
COLUMN_OF = {**{name: name for name in JSON_KEYS}, **{key: name for name, key in JSON_KEYS.items()}}


class MissingColumn(ValueError):
    """Samples lack a column that something needs.

    Args:
        column: Name of the column.
        reader: Name of what needs it.
        present: The columns that the samples have.
    """

    def __init__(self, column: str, reader: str, present: Iterable[str]) -> None:
        self.column, self.reader, self.present = column, reader, tuple(present)
        super().__init__(column, reader, self.present)  # the arguments, so that it pickles

    def __str__(self) -> str:
        """Return the message, with what to give."""
        return (
            f"{self.reader} needs the column {self.column!r}, but these samples have "
            f"{', '.join(self.present)}: give {self.column}=[...], one per text"
        )


def columns_from(data: object) -> dict[str, Any]:
    """Return the columns of some data that `Samples` has, by their plural names.

    Args:
        data: Texts, records, a mapping of columns, a DataFrame or a Dataset.

    Raises:
        TypeError: The data is of another type.
        ValueError: There are no texts, or two columns for one.
    """
    table = table_of(data)
    if table is not None:
        return _known_columns(table)
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        items = list(data)
        if items and all(isinstance(item, Mapping) for item in items):
            return columns_from_records(items)
        return {"texts": items}
    hint = ": put it in a list" if isinstance(data, str) else ""
    raise TypeError(
        f"{shortened(data)} is a {type(data).__name__}{hint}. Give Samples, a list of texts or of "
        "records, a mapping of columns, a pandas DataFrame or a datasets.Dataset"
    )


def columns_from_records(
    records: Sequence[Any], name: Callable[[int], str] = "samples[{}]".format
) -> dict[str, Any]:
    """Return the columns of one or more records.

    Args:
        records: One mapping per sample, with the key `text`; other keys are ignored.
        name: Names the record at an index in errors.

    Raises:
        ValueError: A record has no text, or lacks a key that another one has.
    """
    keys = [*JSON_KEYS, *JSON_KEYS.values()]
    for i, record in enumerate(records):
        if not isinstance(record, Mapping) or not {"text", "texts"} & set(record):
            raise ValueError(
                f"{name(i)} = {shortened(record)} is not an object with the key 'text': give every "
                "sample one"
            )
        for key in keys:
            if (key in record) != (key in records[0]):
                has, lacks = (i, 0) if key in record else (0, i)
                raise ValueError(
                    f"{name(lacks)} lacks the key {key!r} that {name(has)} has: give all samples "
                    "the same keys"
                )
    present = [key for key in keys if key in records[0]]
    return _known_columns({key: [record[key] for record in records] for key in present})


def shortened(item: object, width: int = 40) -> str:
    """Return an item's `repr` for an error message, truncated to `width` characters."""
    text = repr(item).replace("\n", "")  # of a tensor
    return text if len(text) <= width else text[: width - 2] + "…" + text[-1]


def table_of(data: object) -> Mapping[Any, Any] | None:
    """Return the columns of a mapping, a DataFrame or a Dataset by name; None for other data."""
    if isinstance(data, Mapping):
        return data
    # Whoever has such an object has imported its package; this package needs neither.
    pandas, datasets = sys.modules.get("pandas"), sys.modules.get("datasets")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return {name: data[name].tolist() for name in data.columns}
    if datasets is not None and isinstance(data, datasets.Dataset):
        return {name: data[name] for name in data.column_names}
    return None


def _known_columns(table: Mapping[Any, Any]) -> dict[str, Any]:
    columns = {}
    for name, key in JSON_KEYS.items():
        if name in table and key in table:
            raise ValueError(f"the data has the columns {name!r} and {key!r}: leave one out")
        if name in table or key in table:
            columns[name] = table[name] if name in table else table[key]
    if "texts" not in columns:
        raise ValueError(
            "the data has no column 'texts' or 'text', only "
            f"{', '.join(map(str, table)) or 'none'}: give the texts to score this name"
        )
    return columns
