"""Tables of texts: read, converted and written."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from ctrlreward import Samples
from ctrlreward.tables.columns import Columns, number_column, to_samples
from ctrlreward.tables.rows import encode_rows, parse_table, read_rows

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", "", "in.jsonl"),
        ("in.jsonl", '{"text": "a"}\n{"te', "in.jsonl:2"),
        ("in.jsonl", '[{"text": "a"},\n{"text": "b"}]\n', "in.jsonl:1"),
        ("in.csv", "text,id\na,1\n\nb,2,c\n", "in.csv:4"),
        ("in.csv", "text,id,text\na,1,b\n", "in.csv:1"),
        ("in.csv", '\ufefftext;id\n"a; b";1\n', "in.csv:1"),
        ("in.csv", "\udcff\udcfet\0", "in.csv"),
        ("in.csv", "text\na\ncaf\udce9\n", "in.csv:3"),
        ("in.parquet", "text", "in.parquet"),
    ],
)
def test_bad_files(
    name: str, content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        read_rows(Path(name))


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([{"text": "a", "label": "x"}, {"text": "b"}], "label"),
        ([{"text": "a"}, {"text": "b", "label": "x"}], "label"),
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


def test_columns_can_be_renamed_and_ignored() -> None:
    records = [{"output": "a b", "prefix": "no", "label": "x", "other": 1}]
    samples = to_samples(records, Columns(text="output", prefix=None))
    assert samples == Samples(["a b"], labels=["x"])


ROWS = [
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
    samples = to_samples(ROWS, columns)
    assert samples == Samples(texts, prefixes, prompts=prompts if columns.prompt else None)
    trl = [{"completion" if name == "output" else name: row[name] for name in row} for row in ROWS]
    if columns.text == "text" and columns.output is None:
        assert to_samples(trl, columns) == samples


@pytest.mark.parametrize(
    ("present", "columns"),
    [
        ("prompt", Columns()),
        ("output completion", Columns()),  # of which?
        ("text output", Columns(output="answer")),
        ("output", Columns(text="output", output="output")),
        ("output", Columns(prompt="question")),
    ],
)
def test_texts_that_are_not_there_or_not_clear(present: str, columns: Columns) -> None:
    with pytest.raises(ValueError, match="columns"):
        to_samples([dict.fromkeys(present.split(), "a")], columns)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (
            [
                {"text": "a", "sentiment": "good", "topic": 0},
                {"text": "b", "sentiment": "", "topic": 1},
                {"text": "c", "sentiment": "bad", "topic": None},
            ],
            Columns(label="sentiment,topic"),
        ),
        (
            [
                {"text": "a", "label": {"sentiment": "good", "topic": 0}},
                {"text": "b", "label": {"topic": 1}},
                {"text": "c", "label": {"sentiment": "bad", "topic": None}},
            ],
            Columns(),
        ),
    ],
)
def test_labels_of_several_attributes(rows: list[dict[str, object]], columns: Columns) -> None:
    """In a column each, or in an object; an empty cell is a label that is not controlled."""
    labels = ["sentiment=good topic=0", "topic=1", "sentiment=bad"]
    assert to_samples(rows, columns) == Samples(["a", "b", "c"], labels=labels)


def test_parquet_keeps_columns_that_later_rows_add() -> None:
    content = encode_rows(".parquet", [{"a": 1}, {"b": ["x"]}], {"s": np.array([NAN, NAN])})
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    assert table.to_pylist() == [{"a": 1, "b": None, "s": None}, {"a": None, "b": ["x"], "s": None}]
    assert table.schema.field("s").type == pyarrow.float64()


def test_lists_are_json_in_cells() -> None:
    content = encode_rows(
        ".csv", [{"a": ["x", 1]}, {"a": "plain"}], {"s": np.array([0.1, NAN])}
    ).decode()
    assert content == 'a,s\n"[""x"", 1]",0.1\nplain,\n'


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_is_read_back(suffix: str) -> None:
    ends = ["\r", "\n", "\r\n", '"', ",", "", " ", "\u2028", "a\rb", 'x,"\r",y', "\ufeff", "'"]
    records = [{"a\rb": "", "text": text, 'say "it"': end} for text in ends for end in ends]
    content = encode_rows(suffix, records, {"s": np.arange(len(records))})
    rows = parse_table(content, f"file{suffix}")
    assert [row | {"s": float(row["s"])} for _, row in rows] == [
        row | {"s": float(position)} for position, row in enumerate(records)
    ]


def test_what_json_lacks_is_null_or_text() -> None:
    day = datetime.date(2020, 2, 1)
    row = {"a": NAN, "b": [1.5, np.inf], "day": day, "days": [day]}
    line = encode_rows(".jsonl", [row], {"s": np.array([NAN])})
    read = {"a": None, "b": [1.5, None], "day": "2020-02-01", "days": ["2020-02-01"], "s": None}
    assert json.loads(line) == read
    assert encode_rows(".csv", [{"when": day}], {}) == b"when\n2020-02-01\n"


def test_numbers() -> None:
    rows: list[dict[str, Any]] = [{"r": "1.5"}, {"r": ""}, {"r": None}, {}, {"r": 2}, {"r": "True"}]
    expected = [1.5, NAN, NAN, NAN, 2, 1]
    assert np.array_equal(number_column(rows, "r"), expected, equal_nan=True)
    with pytest.raises(ValueError, match=r"No such column: 'q'\. The columns are r"):
        number_column(rows, "q")
    rows[1]["r"] = "good"
    with pytest.raises(ValueError, match=r"^r\[1\] must be a number .* got 'good'"):
        number_column(rows, "r")
    with pytest.raises(ValueError, match=r"^in.csv:3: r must be a number .* got 'good'"):
        number_column(rows, "r", [f"in.csv:{line}" for line in range(2, 7)])
