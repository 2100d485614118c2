"""Tables of texts and scores, encoded in parts: JSONL, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from ctrlreward.extras import import_extra
from ctrlreward.tables.parsing import csv_header, formula_free
from ctrlreward.tables.row_streams import Row

Scores = npt.NDArray[np.float64]

_ROW_GROUP = 8192  # rows of a row group of Parquet, which are kept in memory

_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class TableShape:
    """Columns, and types for Parquet, of a table to be written in parts, from all of its rows."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.names: dict[str, None] = {}
        self.types: dict[str, Any] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Add the next rows."""
        for row in rows:
            if row.keys() != self.names.keys():
                self.names.update(dict.fromkeys(row))
            if self.suffix == ".jsonl":
                _json_line(row)
            elif self.suffix == ".csv":
                for name, value in row.items():
                    _cell(value, name)
        if self.suffix == ".parquet":
            self._add_types(rows)

    def _add_types(self, rows: Sequence[Row]) -> None:
        pyarrow = import_extra("pyarrow", "a Parquet file")
        for name in self.names:
            try:
                found = _array([row.get(name) for row in rows]).type
                known = self.types.get(name, pyarrow.null())
                both = [pyarrow.schema([(name, kind)]) for kind in (known, found)]
                unified = pyarrow.unify_schemas(both, promote_options="permissive")
            except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
                raise ValueError(
                    f"the column {name!r} can't be stored in Parquet ({error}). Write .jsonl "
                    "instead."
                ) from None
            self.types[name] = unified.field(name).type


class TableWriter:
    r"""Table that is written in parts: all columns of the rows, then the scores.

    NaN becomes null in JSONL and Parquet and an empty cell in CSV. Lists and objects become JSON in
    the cells of a CSV file, and formulas get an apostrophe there (`formula_free`). An unpaired
    surrogate, which UTF-8 can't encode, becomes its escape: `\ud800`.
    """

    def __init__(self, file: BinaryIO, shape: TableShape, scores: Sequence[str]) -> None:
        self._file, self._shape, self._scores = file, shape, list(scores)
        self._names = list(dict.fromkeys([*shape.names, *scores]))
        self._held: list[Row] = []  # rows of the next row group
        self._parquet: Any = None
        if shape.suffix == ".parquet":
            pyarrow = import_extra("pyarrow", "a Parquet file")
            parquet = import_extra("pyarrow.parquet", "a Parquet file")
            fields = {**shape.types, **dict.fromkeys(scores, pyarrow.float64())}
            self._parquet = parquet.ParquetWriter(file, pyarrow.schema(list(fields.items())))
        elif shape.suffix == ".csv":
            file.write(_utf8(csv_header([formula_free(name) for name in self._names])))

    def write(self, rows: Sequence[Row], scores: Mapping[str, Scores]) -> None:
        """Write the next rows with their scores, arrays of shape (rows,) by name."""
        scored = [dict(row) for row in rows]
        for name in self._scores:
            values = np.asarray(scores[name], np.float64).tolist()
            for row, value in zip(scored, values, strict=True):
                row[name] = None if math.isnan(value) else value
        if self._parquet is not None:
            self._held += scored
            while len(self._held) >= _ROW_GROUP:
                self._write_group()
        elif self._shape.suffix == ".jsonl":
            self._file.write(_utf8("".join(map(_json_line, scored))))
        else:
            cells = ([_cell(row.get(name), name) for name in self._names] for row in scored)
            self._file.write(_utf8(_csv(cells)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write pending rows, unless there was an error; the file stays open."""
        if self._parquet is not None and kind is None:
            if self._held:
                self._write_group()
            self._parquet.close()

    def _write_group(self) -> None:
        pyarrow = import_extra("pyarrow", "a Parquet file")
        group, self._held = self._held[:_ROW_GROUP], self._held[_ROW_GROUP:]
        schema = self._parquet.schema
        arrays = [_array([row.get(field.name) for row in group], field.type) for field in schema]
        self._parquet.write_table(pyarrow.table(arrays, schema=schema))


def encode_rows(
    suffix: str, rows: Sequence[Row], scores: Mapping[str, Scores], shape: TableShape | None = None
) -> bytes:
    """Encode n rows and scores of shape (n,) in memory; `shape` is of a larger table."""
    if shape is None:
        shape = TableShape(suffix)
        shape.add(rows)
    file = io.BytesIO()
    with TableWriter(file, shape, list(scores)) as writer:
        writer.write(rows, scores)
    return file.getvalue()


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _array(values: Sequence[Any], kind: Any = None) -> Any:
    """Return an Arrow array; None takes the type of the values."""
    pyarrow = import_extra("pyarrow", "a Parquet file")
    try:
        return pyarrow.array(values, type=kind)
    except UnicodeEncodeError:
        return pyarrow.array([_escaped(value) for value in values], type=kind)


def _escaped(value: Any) -> Any:
    """Return a value with escapes in place of unpaired surrogates."""
    if isinstance(value, str):
        return _utf8(value).decode()
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    return value


def _json_line(row: Row) -> str:
    try:
        return _encoded(row) + "\n"
    except (TypeError, ValueError):  # NaN, which is null, or a type that JSON lacks
        cells = (f"{_encoded(name)}: {_json(row[name], name)}" for name in row)
        return "{" + ", ".join(cells) + "}\n"


def _json(value: Any, name: str) -> str:
    """Encode a value of column `name`; NaN, which Parquet and Python's JSON allow, is null."""
    try:
        missing = isinstance(value, float) and math.isnan(value)
        return _encoded(None if missing else value)
    except (TypeError, ValueError):
        raise ValueError(
            f"the column {name!r} has the value {str(value)[:40]}, which JSON cannot represent. "
            "Write .parquet instead."
        ) from None


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO(newline="")
    minimal = csv.writer(buffer, lineterminator="\n")
    # Minimal quoting leaves a lone \r unquoted, and readers treat it as a line end.
    quoting = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for cells in rows:
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoting if has_return else minimal).writerow(cells)
    return buffer.getvalue()


def _cell(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return formula_free(value)
    return _json(value, name) if isinstance(value, dict | list) else value
