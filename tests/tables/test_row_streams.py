"""Tables read as other programs read them, and written."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.tables.rows import encode_rows, parse_csv, parse_table

CELLS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ['"', "a,b", "\r\n", "\ufeff"]
)
NAMES = ["text", "é,", 'q"']
ROWS = st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, CELLS)), min_size=1, max_size=9)
VALUES = (
    CELLS | st.none() | st.integers(-9, 9) | st.booleans() | st.lists(st.integers(), max_size=2)
)
LOOSE = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=1, max_size=9)


@given(rows=LOOSE, bom=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_json_lines_are_read_as_json_reads_each(
    rows: list[dict[str, Any]], bom: bool, end: str
) -> None:
    text = end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    content = (("\ufeff" if bom else "") + text).encode()
    assert parse_table(content, "f.jsonl") == list(enumerate(rows, 1))
    blank = content.replace(end.encode(), end.encode() * 2)
    assert [row for _, row in parse_table(blank, "f.jsonl")] == rows


@given(rows=ROWS, bom=st.booleans(), end=st.sampled_from(["\n", "\r\n"]))
def test_csv_is_read_as_it_was_written(rows: list[dict[str, str]], bom: bool, end: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, NAMES, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    content = (("\ufeff" if bom else "") + text.getvalue()).encode()
    assert [row for _, row in parse_table(content, "f.csv")] == rows


def test_parquet_types_come_from_all_rows() -> None:
    rows: list[dict[str, Any]] = [{"a": None}, {"a": 1, "b": "x"}, {"a": 2.5, "c": [1]}]
    content = encode_rows(".parquet", rows, {"s": np.array([1.0, np.nan, 3.0])})
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    assert [str(field.type) for field in table.schema] == [
        *("double", "string", "list<element: int64>", "double")
    ]
    assert table["a"].to_pylist() == [None, 1.0, 2.5]
    assert table["s"].to_pylist() == [1.0, None, 3.0]
    for unfit in ([{"a": 1}, {"a": "x"}], [{"a": 2**70}], [{"a\ud800": 1}]):
        with pytest.raises(ValueError, match=r"the column 'a.*' can't be stored in Parquet"):
            encode_rows(".parquet", unfit, {})


@pytest.mark.parametrize(
    "content",
    [
        "text,id,label\na\nb,2\nc,3,x\n",
        "text,id\n\n\na\n\n",
        '"text","id"\n"\'=1","1"\n',  # as R writes it
    ],
)
def test_rows_are_as_in_pandas(content: str) -> None:
    frame = pandas.read_csv(io.StringIO(content), dtype=str, keep_default_na=False)
    _, rows = parse_csv(content, "in.csv", fill=True)
    assert [cells for _, cells in rows] == frame.fillna("").to_dict("records")


def test_blank_lines() -> None:
    """A row of a file of one column, as in pandas; skipped in a file of numbers."""
    content = "text\na\n\nb\n"
    frame = pandas.read_csv(
        io.StringIO(content), dtype=str, keep_default_na=False, skip_blank_lines=False
    )
    _, rows = parse_csv(content, "in.csv", fill=True)
    assert [cells["text"] for _, cells in rows] == frame["text"].tolist() == ["a", "", "b"]
    _, numbers = parse_csv("loss\n1\n\n2\n\n", Path("run.csv"))
    assert [cells["loss"] for _, cells in numbers] == ["1", "2"]
