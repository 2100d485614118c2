"""Tables of texts and scores as JSONL, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrlreward.extras import import_extra
from ctrlreward.files import finite_or_none, without_nan
from ctrlreward.tables.row_streams import Row

Scores = npt.NDArray[np.float64]


def encode_rows(suffix: str, rows: Sequence[Row], scores: Mapping[str, Scores]) -> bytes:
    r"""Encode a table: all columns of n rows, then the scores, arrays of shape (n,) by name.

    NaN becomes null, in CSV an empty cell. Lists and objects are JSON in a cell of CSV. What JSON
    lacks, such as a date, becomes text, and infinity null. An unpaired surrogate, which UTF-8 can't
    encode, becomes its escape: `\ud800`.

    Raises:
        ValueError: Parquet can't hold a column.
    """
    columns = {name: [*map(finite_or_none, values)] for name, values in scores.items()}
    names = list(dict.fromkeys([*(name for row in rows for name in row), *scores]))
    if suffix == ".parquet":
        return _parquet({n: columns.get(n) or [row.get(n) for row in rows] for n in names}, scores)
    added = [
        dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
    ]
    table = [row | own for row, own in zip(rows, added or [{}] * len(rows), strict=True)]
    if suffix == ".jsonl":
        return _utf8("".join(_json(row) + "\n" for row in table))
    lines = [[_cell(row.get(name)) for name in names] for row in table]
    # Minimal quoting leaves a lone \r unquoted, and readers treat it as a line end.
    returns = any("\r" in cell for line in [names, *lines] for cell in line if type(cell) is str)
    buffer = io.StringIO(newline="")
    dialect: Any = {"quoting": csv.QUOTE_ALL} if returns else {}
    csv.writer(buffer, lineterminator="\n", **dialect).writerows([names, *lines])
    return _utf8(buffer.getvalue())


def _parquet(columns: Mapping[str, Sequence[Any]], scores: Mapping[str, Scores]) -> bytes:
    pyarrow = import_extra("pyarrow", "a Parquet file")
    parquet = import_extra("pyarrow.parquet", "a Parquet file")
    arrays = {}
    for name, values in columns.items():
        cells = [_utf8(cell).decode() if isinstance(cell, str) else cell for cell in values]
        try:
            arrays[name] = pyarrow.array(cells, pyarrow.float64() if name in scores else None)
            pyarrow.field(name, arrays[name].type)
        except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
            raise ValueError(
                f"the column {name!r} can't be stored in Parquet ({error}). Write .jsonl instead."
            ) from None
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _json(value: Any) -> str:
    return json.dumps(without_nan(value), ensure_ascii=False, default=str)


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, dict | list) else value
