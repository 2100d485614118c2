"""Tables of texts, read as other programs read them, converted and written."""

from __future__ import annotations

import datetime
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import Samples
from ctrlreward.tables.columns import Columns, number_column, to_samples
from ctrlreward.tables.rows import (
    encode_rows,
    parquet_types,
    parse_table,
    read_placed,
    read_rows,
)

NAN = float("nan")

CELLS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ['"', "a,b", "\r\n", "\ufeff"]
)
NAMES = ["text", "é,", 'q"']
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


@pytest.mark.parametrize(
    "content",
    [
        "text,id,label\na\nb,2\nc,3,x\n",
        "text,id\n\n\na\n\n",
        '\ufeff"text","id"\r\n"\'=1","1"\r\n',  # as Excel and R write it
        "text\na\n\nb\n",  # a blank line of a file of one column is a row
    ],
)
def test_csv_is_as_in_pandas(content: str) -> None:
    options = {"dtype": str, "keep_default_na": False, "skip_blank_lines": "," in content}
    frame = pandas.read_csv(io.BytesIO(content.encode()), **options)
    rows = [cells for _, cells in parse_table(content.encode(), "in.csv")]
    assert rows == frame.fillna("").to_dict("records")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", "", "in.jsonl"),
        ("in.jsonl", '{"text": "a"}\n{"te', "in.jsonl:2"),
        ("in.csv", "text,id\na,1\n\nb,2,c\n", "in.csv:4"),
        ("in.csv", "text,id,text\na,1,b\n", "in.csv:1"),
        ("in.csv", "text,id\na,1\ntext,id\nb,2\n", "in.csv:3"),  # two files, joined by cat
        ("in.csv", '\ufefftext;id\n"a; b";1\n', "in.csv"),
        ("in.csv", "text\na\ncaf\udce9\n", "in.csv:3"),
        ("in.csv", "\udcff\udcfet\0e\0", "utf-16"),
        ("in.jsonl", '{"text": "a"}\n\n{"text": "caf\udce9"}', "in.jsonl:3"),
        ("in.parquet", "text", "in.parquet"),
    ],
)
def test_bad_files(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path / name)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_shard_holds_no_other_rows(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"in{suffix}"
    path.write_bytes(encode_rows(suffix, [{"text": f"{i}", "n": i} for i in range(20_000)], {}))
    peaks = []
    for shard in (None, "2/10"):
        tracemalloc.start()
        rows, places = read_placed(path, shard)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert [row["n"] for row in rows] == [*range(2000, 4000)]
    assert (places[0], places[-1]) == (f"{path}:2001", f"{path}:4000")
    assert peaks[1] < peaks[0] / 2


# Columns


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([{"text": "a", "label": "x"}, {"text": "b"}], "label"),
        ([{"text": "a"}, {"text": 2}], "text"),
        ([{"text": "a", "label": True}], "label"),
    ],
)
def test_wrong_rows_are_named(rows: list[dict[str, object]], name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        to_samples(rows, Columns())


def test_an_empty_or_null_text_needs_no_prefix_and_integers_name_labels_and_groups() -> None:
    rows = [
        {"text": "a b", "prefix": "a", "label": 1, "group": 7},
        {"text": "", "prefix": "a", "label": "0", "group": 7},
        {"text": None, "prefix": "a", "label": 0, "group": "8"},
    ]
    samples = to_samples(rows, Columns(), label_map={"0": "bad", "1": "good"})
    labels, groups = ["good", "bad", "bad"], ["7", "7", "8"]
    assert samples == Samples(["a b", "", ""], ["a", "", ""], labels, groups=groups)


ROWS_OF_OUTPUTS = [
    {"prompt": "The soup", "prefix": "A", "output": "was good.", "answer": "x"},
    {"prompt": "The view ", "prefix": "A", "output": " was fine.", "answer": "x"},
    {"prompt": "The bread", "prefix": "A", "output": " ", "answer": None},
]


@pytest.mark.parametrize(
    ("columns", "texts", "prefixes"),
    [
        (Columns(prefix=None), ["The soup was good.", "The view was fine.", ""], "prompts"),
        (Columns(output="answer"), ["A x", "A x", ""], ["A", "A", ""]),
        (Columns(output="answer", prefix=None, prompt=None), ["x", "x", ""], None),
        (Columns(text="output", prefix=None), ["was good.", " was fine.", " "], None),
    ],
)
def test_outputs_follow_their_prompts(columns: Columns, texts: list[str], prefixes: Any) -> None:
    prompts = ["The soup", "The view ", "The bread"]
    if prefixes == "prompts":
        prefixes = [*prompts[:2], ""]
    samples = to_samples(ROWS_OF_OUTPUTS, columns)
    assert samples == Samples(texts, prefixes, prompts=prompts if columns.prompt else None)


@pytest.mark.parametrize(
    ("present", "columns"),
    [
        ("prompt", Columns()),
        ("output completion", Columns()),  # of which?
        ("text output", Columns(output="answer")),
        ("output", Columns(text="output", output="output")),
        ("output", Columns(prompt="question")),
        ("text sentiment", Columns(label="sentiment,topic")),
    ],
)
def test_texts_that_are_not_there_or_not_clear(present: str, columns: Columns) -> None:
    with pytest.raises(ValueError, match="columns"):
        to_samples([dict.fromkeys(present.split(), "a")], columns)


def test_labels_of_several_attributes() -> None:
    """In a column each, or in an object; an empty cell is a label that is not controlled."""
    cells = [{"sentiment": "good", "topic": 0}, {"sentiment": "", "topic": 1}, {"sentiment": "bad"}]
    columns = [{"text": "a", **{"topic": None, **each}} for each in cells]
    objects = [{"text": "a", "label": each} for each in cells]
    expected = Samples(["a"] * 3, labels=["sentiment=good topic=0", "topic=1", "sentiment=bad"])
    assert to_samples(columns, Columns(label="sentiment,topic")) == expected
    assert to_samples(objects, Columns()) == expected


def test_numbers() -> None:
    rows: list[dict[str, Any]] = [{"r": "1.5"}, {"r": ""}, {"r": None}, {}, {"r": 2}, {"r": "True"}]
    expected = [1.5, NAN, NAN, NAN, 2, 1]
    assert np.array_equal(number_column(rows, "r"), expected, equal_nan=True)
    with pytest.raises(ValueError, match="q"):
        number_column(rows, "q")
    rows[1]["r"] = "good"
    with pytest.raises(ValueError, match=r"in\.csv:3: r"):
        number_column(rows, "r", [f"in.csv:{line}" for line in range(2, 8)])


# Writing


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_is_read_back(suffix: str) -> None:
    ends = ["\r", "\n", "\r\n", '"', ",", "", " ", "\u2028", "a\rb", 'x,"\r",y', "\ufeff", "'"]
    records = [{"a\rb": "", "text": text, 'say "it"': end} for text in ends for end in ends]
    content = encode_rows(suffix, records, {"s": np.arange(len(records))})
    rows = parse_table(content, f"file{suffix}")
    assert [row | {"s": float(row["s"])} for _, row in rows] == [
        row | {"s": float(position)} for position, row in enumerate(records)
    ]


def test_parquet_types_come_from_all_rows() -> None:
    rows: list[dict[str, Any]] = [{"a": None}, {"a": 1, "b": "x"}, {"a": 2.5, "c": [1]}]
    content = encode_rows(".parquet", rows, {"s": np.array([1.0, np.nan, np.nan])})
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    assert table["a"].to_pylist() == [None, 1.0, 2.5]
    assert table["s"].to_pylist() == [1.0, None, None]
    for unfit in ([{"a": 1}, {"a": "x"}], [{"a": 2**70}], [{"a\ud800": 1}]):
        with pytest.raises(ValueError, match=r"'a.*Parquet"):
            encode_rows(".parquet", unfit, {})


def test_a_parquet_file_keeps_its_types(tmp_path: Path) -> None:
    pa = pyarrow
    columns = {
        "text": pa.array(["a", None], pa.large_string()),
        "pairs": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "hash": pa.array([2**64 - 1, None], pa.uint64()),
        "small": pa.array([0.1, None], pa.float32()),
        "name": pa.array(["x", None]).dictionary_encode(),
        "when": pa.array([10**18 + 1, None], pa.timestamp("ns")),
        "none": pa.nulls(2),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "in.parquet")
    types = parquet_types(tmp_path / "in.parquet")
    content = encode_rows(".parquet", read_rows(tmp_path / "in.parquet"), {"s": np.ones(2)}, types)
    expected = pa.table({**columns, "s": [1.0, 1.0]})
    assert pa.parquet.read_table(io.BytesIO(content)).equals(expected)


def test_what_json_or_csv_lack_is_null_or_text() -> None:
    day = datetime.date(2020, 2, 1)
    row = {"a": NAN, "b": [1.5, np.inf], "day": day, "days": [day]}
    line = encode_rows(".jsonl", [row], {"s": np.array([NAN])})
    read = {"a": None, "b": [1.5, None], "day": "2020-02-01", "days": ["2020-02-01"], "s": None}
    assert json.loads(line) == read
    cells = [{"a": ["x", 1], "when": day, "n": np.inf}, {"a": "plain", "when": day, "n": NAN}]
    content = encode_rows(".csv", cells, {"s": np.array([0.1, NAN])}).decode()
    assert content == 'a,when,n,s\n"[""x"", 1]",2020-02-01,,0.1\nplain,2020-02-01,,\n'
