"""Tables of texts and scores as JSONL, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrlreward.extras import import_extra
from ctrlreward.tables.parsing import csv_header, formula_free
from ctrlreward.tables.row_streams import Row

Scores = npt.NDArray[np.float64]

_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def encode_rows(suffix: str, rows: Sequence[Row], scores: Mapping[str, Scores]) -> bytes:
    r"""Encode a table: all columns of n rows, then the scores, arrays of shape (n,) by name.

    NaN becomes null in JSONL and Parquet and an empty cell in CSV. Lists and objects become JSON in
    the cells of a CSV file, and formulas get an apostrophe there (`formula_free`). An unpaired
    surrogate, which UTF-8 can't encode, becomes its escape: `\ud800`.

    Raises:
        ValueError: The format can't hold a value; names its column.
    """
    scored = [dict(row) for row in rows]
    for name, values in scores.items():
        for row, value in zip(scored, np.asarray(values, np.float64).tolist(), strict=True):
            row[name] = None if math.isnan(value) else value
    if suffix == ".jsonl":
        return _utf8("".join(map(_json_line, scored)))
    names = list(dict.fromkeys([*(name for row in rows for name in row), *scores]))
    if suffix == ".parquet":
        return _parquet(names, scored, scores)
    header = csv_header([formula_free(name) for name in names])
    return _utf8(header + _csv([_cell(row.get(name), name) for name in names] for row in scored))


def _parquet(names: Sequence[str], rows: Sequence[Row], scores: Collection[str]) -> bytes:
    pyarrow = import_extra("pyarrow", "a Parquet file")
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    fields, arrays = [], []
    for name in names:
        try:
            kind = pyarrow.float64() if name in scores else None
            arrays.append(_array([row.get(name) for row in rows], kind))
            fields.append(pyarrow.field(name, arrays[-1].type))
        except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
            raise ValueError(
                f"the column {name!r} can't be stored in Parquet ({error}). Write .jsonl instead."
            ) from None
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays, schema=pyarrow.schema(fields)), file)
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
