"""Scoring files, with scorers that count letters in the place of models."""

from __future__ import annotations

import csv
import datetime
import fcntl
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.commands.chunked_scoring import ScoreLog, score_in_chunks
from ctrlreward.commands.formats.tables import (
    Columns,
    encode,
    numbers,
    parse_records,
    read_records,
    to_samples,
)
from ctrlreward.scorers import Distinct, Perplexity
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

NAN = float("nan")
LETTERS = " abcdefghijklmnopqrstuvwxyzT."


class Letters(Scorer):
    """Counts one letter; an empty text fails."""

    calls: list[int]  # rows of each call, by all of them

    def __init__(self, letter: str = "e", device: str = "cpu") -> None:
        if len(letter) != 1:
            raise ValueError(f"letter = {letter!r}: give one")
        self.letter = letter

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"letters": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def score(self, samples: Samples) -> dict[str, Scores]:
        Letters.calls.append(len(samples))
        counts = [text.count(self.letter) / 3 if text else NAN for text in samples.texts]
        return {"letters": np.array(counts)}


class Rank(Scorer):
    """The share of all samples that are shorter: no sample has it alone."""

    pointwise = False

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"rank": ScoreSpec(higher_is_better=False, range=(0.0, 1.0))}

    def score(self, samples: Samples) -> dict[str, Scores]:
        lengths = np.array([len(text) for text in samples.texts])
        return {"rank": (lengths[:, None] > lengths).mean(axis=1)}


class Interrupted(Scorer):
    """Ends the process like a machine that is switched off, in the middle of a file."""

    calls: list[int]

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"length": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def score(self, samples: Samples) -> dict[str, Scores]:
        if "KILL_AT" in os.environ and os.environ["KILL_AT"] in samples.texts:
            os.kill(os.getpid(), signal.SIGKILL)
        Interrupted.calls.append(len(samples))
        return {"length": np.array([len(text) for text in samples.texts], dtype=np.float64)}


TEXTS = [f"text number {i}, " + "e" * (i % 7) for i in range(10)]
RECORDS: list[dict[str, Any]] = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
RECORDS[4]["text"] = ""


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with this module under a name that a command line can give."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "stubs", sys.modules[__name__])
    for stub in (Letters, Rank, Interrupted):
        monkeypatch.setattr(stub, "__module__", "stubs")
    for stub in (Letters, Interrupted):
        monkeypatch.setattr(stub, "calls", [], raising=False)


def write_jsonl(name: str, records: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def write_csv(name: str, records: list[dict[str, Any]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def expected() -> list[float | None]:
    return [record["text"].count("e") / 3 if record["text"] else None for record in RECORDS]


def fails(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a command that is to fail, as one line."""
    with pytest.raises(SystemExit) as ended:
        main(["score", *arguments])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


# What goes in and comes out


@pytest.mark.parametrize("source", ["in.jsonl", "in.csv"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.csv", "out.parquet"])
def test_every_file_carries_its_columns_and_scores(source: str, target: str) -> None:
    (write_csv if source == "in.csv" else write_jsonl)(source, RECORDS)
    main(["score", source, target, "--scorers+=stubs.Letters", "--chunk=3"])
    if target == "out.jsonl":
        found = [json.loads(line) for line in Path(target).read_text().splitlines()]
    elif target == "out.csv":
        with open(target, newline="") as file:
            found = list(csv.DictReader(file))
        found = [
            row | {"letters": float(row["letters"]) if row["letters"] else None} for row in found
        ]
    else:
        found = pyarrow.parquet.read_table(target).to_pylist()
    assert [row["text"] for row in found] == [record["text"] for record in RECORDS]
    assert [int(row["id"]) for row in found] == list(range(10))
    assert [row["letters"] for row in found] == expected()
    assert list(found[0]) == ["id", "text", "letters"]
    assert not Path(f"{target}.partial.jsonl").exists()


def test_scores_are_the_scorers_own(tiny_llama: Callable[[str], str], one_thread: None) -> None:
    folder = tiny_llama(LETTERS)
    records = [
        {"text": f"{a} {b}.", "group": a} for a in ("Tea", "a cat") for b in ("is", "is", "so")
    ]
    write_jsonl("in.jsonl", records)
    options = [f"--scorers.model={folder}", "--scorers+=Distinct", f"--scorers.tokenizer={folder}"]
    main(["score", "in.jsonl", "out.jsonl", "--scorers+=Perplexity", *options, "--chunk=4"])
    samples = Samples(
        *([r[k] for r in records] for k in ("text",)), groups=[r["group"] for r in records]
    )
    direct = Perplexity(folder).score(samples) | Distinct(folder).score(samples)
    rows = read_records(Path("out.jsonl"))
    assert set(rows[0]) == {"text", "group", *direct}
    for name, values in direct.items():
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), rel=1e-5)


def test_nested_scorers_from_yaml(tiny_llama: Callable[[str], str], one_thread: None) -> None:
    model = {"model": tiny_llama(LETTERS)}
    evaluators = {
        "class_path": "ctrlreward.scorers.CTRLEval",
        "init_args": {**model, "aspects": ["attribute_relevance"]},
    }
    accuracy = {"class_path": "Accuracy", "init_args": {"classifier": evaluators}}
    config = {
        "scorers": [
            {"class_path": "stubs.Letters", "init_args": {"letter": "o"}},
            {"class_path": "ctrlreward.scorers.Accuracy", "init_args": accuracy["init_args"]},
        ],
        "columns": {"text": "output", "label": "wanted"},
        "chunk": 1,
    }
    Path("scorers.yaml").write_text(yaml.safe_dump(config))
    write_jsonl("in.jsonl", [{"output": "so good", "wanted": "positive"}] * 2)
    main(["score", "in.jsonl", "out.jsonl", "--config", "scorers.yaml", "--chunk=2"])
    rows = read_records(Path("out.jsonl"))
    assert [row["letters"] for row in rows] == [1.0, 1.0]
    assert all(0 < row["label_probability"] < 1 for row in rows)
    assert Letters.calls == [1]  # a text that is there twice is scored once


def test_transfer_quality_is_read_from_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {
        "accuracy": {"class_path": "Accuracy", "init_args": {"classifier": "some/folder"}},
        "similarity": {"class_path": "Similarity"},
        "perplexity": {"class_path": "Perplexity", "init_args": {"model": "another/folder"}},
    }
    config = {"scorers": [{"class_path": "TransferQuality", "init_args": parts}]}
    Path("scorers.yaml").write_text(yaml.safe_dump(config))
    write_jsonl("in.jsonl", [{"text": "good", "gm": 1}])
    error = fails("in.jsonl", "out.jsonl", "--config=scorers.yaml", capsys=capsys)
    assert "in.jsonl has columns that are named like scores, gm: give the scorers --names" in error


def test_groups_are_scored_whole() -> None:
    write_jsonl("in.jsonl", RECORDS)
    main(["score", "in.jsonl", "out.jsonl", "--scorers+=stubs.Rank", "--chunk=2"])
    found = [row["rank"] for row in read_records(Path("out.jsonl"))]
    direct = Rank().score(Samples([record["text"] for record in RECORDS]))["rank"]
    assert found == direct.tolist()


def test_scorers_with_equal_scores_are_told_apart_by_name() -> None:
    write_jsonl("in.jsonl", RECORDS)
    options = ["--scorers+=stubs.Letters", "--scorers+=stubs.Letters", "--scorers.letter=t"]
    main(["score", "in.jsonl", "out.jsonl", *options, "--names=[e,t]"])
    rows = read_records(Path("out.jsonl"))
    assert [row["e.letters"] for row in rows] == expected()
    assert rows[0]["t.letters"] == TEXTS[0].count("t") / 3


def test_the_summary_gives_mean_direction_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    main(["score", "in.jsonl", "out.csv", "--scorers+=stubs.Letters", "--scorers+=stubs.Rank"])
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    mean = np.mean([value for value in expected() if value is not None])
    assert ["letters", "↑", f"{mean:.4f}", "10", "1"] in lines
    assert any(line[:2] == ["rank", "↓"] and line[-2:] == ["10", "0"] for line in lines)


# A run that was cut off

STOPPED = ["--scorers+=stubs.Letters", "--scorers+=stubs.Interrupted", "--chunk=4"]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it scores row 5 of 10, by the second of two scorers."""
    write_jsonl("in.jsonl", RECORDS)
    monkeypatch.setenv("KILL_AT", TEXTS[5])
    process = multiprocessing.get_context("fork").Process(
        target=main, args=(["score", "in.jsonl", "out.csv", *STOPPED],)
    )
    process.start()
    process.join(60)
    monkeypatch.delenv("KILL_AT")
    assert process.exitcode == -signal.SIGKILL
    assert not Path("out.csv").exists()


def test_goes_on_where_it_stopped(stopped: None, capsys: pytest.CaptureFixture[str]) -> None:
    partial = Path("out.csv.partial.jsonl")
    assert len(partial.read_text().splitlines()) == 1 + 3 + 1  # three chunks, then one
    options = ["--scorers+=stubs.Letters", "--scorers.letter=t", *STOPPED[1:]]
    error = fails("in.jsonl", "out.csv", *options, capsys=capsys)
    assert "out.csv.partial.jsonl was begun with another scorers" in error
    error = fails("in.jsonl", "out.csv", *STOPPED, "--columns.label=text", capsys=capsys)
    assert "out.csv.partial.jsonl was begun with another columns" in error
    kept = Path("in.jsonl").read_text()
    write_jsonl("in.jsonl", RECORDS[:-1])
    error = fails("in.jsonl", "out.csv", *STOPPED, capsys=capsys)
    assert "out.csv.partial.jsonl was begun with another input" in error
    Path("in.jsonl").write_text(kept)
    with open(partial, "a") as file:
        file.write('{"scorer": 1, "scores": {"len')  # cut off while it was written
    options = ["--scorers+=stubs.Letters", "--scorers.device=cuda", *STOPPED[1:-1], "--chunk=3"]
    main(["score", "in.jsonl", "out.csv", *options])  # device and chunk may change
    assert Letters.calls == []
    assert Interrupted.calls == [3, 3]
    rows = read_records(Path("out.csv"))
    assert [row["text"] for row in rows] == [record["text"] for record in RECORDS]
    assert numbers(rows, "length").tolist() == [len(record["text"]) for record in RECORDS]
    assert np.array_equal(numbers(rows, "letters"), np.array(expected(), dtype=np.float64), True)
    assert not partial.exists()


def test_a_finished_file_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    command = ["in.jsonl", "out.jsonl", "--scorers+=stubs.Letters"]
    main(["score", *command])
    content = Path("out.jsonl").read_bytes()
    main(["score", *command])
    assert "out.jsonl is finished: delete it to score in.jsonl again" in capsys.readouterr().out
    assert Path("out.jsonl").read_bytes() == content
    assert Letters.calls == [10]
    error = fails(*command[:2], "--scorers+=stubs.Rank", capsys=capsys)
    assert "out.jsonl exists and is no finished output of this command" in error
    assert "lacks rank" in error


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_finished_file_of_other_texts_is_not_taken_for_this_one(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["in.jsonl", output, "--scorers+=stubs.Letters"]
    write_jsonl("in.jsonl", [record | {"none": None} for record in RECORDS])
    main(["score", *command])
    main(["score", *command])
    assert f"{output} is finished" in capsys.readouterr().out
    changed = [record | {"none": None} for record in RECORDS]
    changed[3]["text"] = "a new text"
    write_jsonl("in.jsonl", changed)
    error = fails(*command, capsys=capsys)
    assert f"{output} exists and was made from other rows: text[3] is 'text number 3, eee'" in error
    assert "would be 'a new text'" in error


def test_two_processes_do_not_score_into_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    command = ["in.jsonl", "out.jsonl", "--scorers+=stubs.Letters"]
    with open(".out.jsonl.lock", "w") as held:  # as another process would
        fcntl.flock(held, fcntl.LOCK_EX)
        error = fails(*command, capsys=capsys)
        assert "another process is scoring into out.jsonl: wait for it" in error
        assert Letters.calls == []
    main(["score", *command])
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "out.jsonl"]


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["in.jsonl", "out.txt", "--scorers+=stubs.Letters"],
            "out.txt ends in '.txt': give .jsonl",
        ),
        (["in.jsonl", "o.csv", "--scorers=[]"], "scorers is empty: give some of Accuracy"),
        (
            ["in.jsonl", "o.csv", *["--scorers+=stubs.Letters"] * 2],
            "two scorers have a score 'letters'",
        ),
        (
            ["in.jsonl", "o.csv", "--scorers+=stubs.Letters", "--names=[a,b]"],
            "names = ['a', 'b'] for 1 scorers: give each one of its own",
        ),
        (
            ["in.jsonl", "o.csv", "--scorers+=stubs.Letters", "--chunk=0"],
            "chunk = 0: give a positive",
        ),
        (
            ["in.jsonl", "o.csv", "--scorers+=stubs.Letters", "--columns.text=output"],
            "there is no column 'output' for text: the file has id, text; name it with",
        ),
        (
            ["in.jsonl", "o.csv", "--scorers+=stubs.Letters", "--columns.label=wanted"],
            "there is no column 'wanted' for label",
        ),
        (
            ["in.jsonl", "o.csv", "--scorers+=stubs.Letters", "--scorers.letter=ab"],
            "letter = 'ab': give one",
        ),
        (
            ["none.jsonl", "o.csv", "--scorers+=stubs.Letters"],
            "No such file or directory: 'none.jsonl'",
        ),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl("in.jsonl", RECORDS)
    assert message in fails(*arguments, capsys=capsys)
    assert [path.name for path in Path().iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", "", "in.jsonl has no rows"),
        ("in.jsonl", '{"text": "a"}\n{"te', "in.jsonl:2 is not JSON: Untermin"),
        ("in.jsonl", '["a"]\n', "in.jsonl:1 is no JSON object"),
        (
            "in.csv",
            "text,id\na,1\n\nb\n",
            "in.csv:4 has not the 2 columns of the header: text, id",
        ),
        ("in.csv", 'text,id\n"a,1\n', "in.csv:. is no CSV: unexpected end of data"),
        ("in.csv", "text,id,text\na,1,b\n", "in.csv has several columns 'text': rename all"),
        ("in.csv", "text\na\ncaf\udce9\n", "in.csv:3 is no UTF-8 text: convert the file"),
        ("in.jsonl", '{"text": "caf\udce9"}', "in.jsonl:1 is no UTF-8 text: convert the file"),
        ("in.parquet", "text", "in.parquet can't be read as Parquet"),
        ("in.txt", "a", r"in\.txt ends in '\.txt': give \.jsonl, \.csv, \.parquet"),
    ],
)
def test_bad_files(name: str, content: str, message: str) -> None:
    Path(name).write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=message):
        read_records(Path(name))


def test_rows_without_a_column_are_named() -> None:
    with pytest.raises(ValueError, match="row 1 has no 'label', which the first row has"):
        to_samples([{"text": "a", "label": "x"}, {"text": "b"}], Columns())
    with pytest.raises(TypeError, match=r"text\[1\] = None is a NoneType: give strings$"):
        to_samples([{"text": "a"}, {"text": None}], Columns())
    with pytest.raises(TypeError, match=r"aside with --columns\.label=null"):
        to_samples([{"text": "a", "label": 1}], Columns())


def test_columns_are_read_by_their_names_or_left_aside() -> None:
    records = [{"output": "a b", "prefix": "no", "label": "x", "other": 1}]
    samples = to_samples(records, Columns(text="output", prefix=None))
    assert samples == Samples(["a b"], labels=["x"])


def test_numbers() -> None:
    records: list[dict[str, Any]] = [{"r": "1.5"}, {"r": ""}, {"r": None}, {"r": 2}]
    assert np.array_equal(numbers(records, "r"), [1.5, NAN, NAN, 2], equal_nan=True)
    with pytest.raises(ValueError, match="there is no column 'q': the file has r"):
        numbers(records, "q")
    with pytest.raises(ValueError, match=r"r\[1\] = 'good' is no number"):
        numbers([{"r": 1}, {"r": "good"}], "r")


def test_parquet_says_which_column_it_cannot_hold() -> None:
    with pytest.raises(
        ValueError, match=r"the column 'a' can't be stored in Parquet .*write .jsonl"
    ):
        encode(".parquet", [{"a": 1}, {"a": "x"}], {})


def test_parquet_keeps_columns_that_later_rows_add() -> None:
    content = encode(".parquet", [{"a": 1}, {"b": ["x"]}], {"s": np.array([NAN, NAN])})
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    assert table.to_pylist() == [{"a": 1, "b": None, "s": None}, {"a": None, "b": ["x"], "s": None}]
    assert table.schema.field("s").type == pyarrow.float64()


def test_lists_are_json_in_cells() -> None:
    content = encode(
        ".csv", [{"a": ["x", 1]}, {"a": "plain"}], {"s": np.array([0.1, NAN])}
    ).decode()
    assert content == 'a,s\n"[""x"", 1]",0.1\nplain,\n'


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_is_read_back(suffix: str) -> None:
    ends = ["\r", "\n", "\r\n", '"', ",", "", " ", "\u2028", "a\rb", 'x,"\r",y', "\ufeff", "'"]
    records = [{"a\rb": "", "text": text, 'say "it"': end} for text in ends for end in ends]
    content = encode(suffix, records, {"s": np.arange(len(records))})
    found = parse_records(content, Path(f"file{suffix}"))
    assert [row | {"s": float(row["s"])} for row in found] == [
        row | {"s": float(place)} for place, row in enumerate(records)
    ]


def test_json_says_which_column_it_has_no_form_for() -> None:
    line = encode(".jsonl", [{"a": NAN, "b": [1.5]}], {"s": np.array([NAN])})
    assert json.loads(line) == {"a": None, "b": [1.5], "s": None}
    day = datetime.date(2020, 2, 1)
    for suffix, value in ((".jsonl", day), (".jsonl", np.inf), (".csv", [day]), (".jsonl", [NAN])):
        with pytest.raises(ValueError, match=r"the column 'when' holds .* JSON has no form"):
            encode(suffix, [{"when": value}], {})
    assert encode(".csv", [{"when": day}], {}) == b"when\n2020-02-01\n"


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    command = ["score", "in.jsonl", "out.csv", *["--scorers+=stubs.Letters"] * 2]
    main([*command, "--names", '["e[bold]", "x:a:"]'])
    printed = capsys.readouterr().out
    assert "e[bold].letters" in printed
    assert "x:a:.letters" in printed


def test_a_log_of_more_rows_is_of_another_run(tmp_path: Path) -> None:
    log = ScoreLog(tmp_path / "log.jsonl", {"input": "x"})
    log.append(0, {"letters": np.zeros(3)})
    components = {"letters": Letters()["letters"]}
    with pytest.raises(ValueError, match=r"log\.jsonl has 3 rows of 2: delete it to start anew"):
        score_in_chunks(components, Samples(["a", "b"]), 4, log)


def test_a_log_gives_back_what_it_was_given(tmp_path: Path) -> None:
    scores = {"a": np.array([0.1, NAN]), "b": np.array([1e-300, -0.0])}
    log = ScoreLog(tmp_path / "log.jsonl", {"input": "x"})
    log.append(1, scores)
    log.append(1, scores)
    again = ScoreLog(tmp_path / "log.jsonl", {"input": "x"})
    assert (again.rows(0), again.rows(1)) == (0, 4)
    for name, values in again.columns(1).items():
        assert np.array_equal(values, np.tile(scores[name], 2), equal_nan=True)
