"""`ctrlreward score`, with scorers that count letters instead of models."""

from __future__ import annotations

import csv
import fcntl
import json
import multiprocessing
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet
import pytest
from fakes import OneLetter, Rank, Share

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.scorers import parts
from ctrlreward.tables.columns import number_column
from ctrlreward.tables.rows import read_rows

LETTERS = " abcdefghijklmnopqrstuvwxyzT."
BY_LETTERS = "--scorers+=fakes.OneLetter"
TEXTS = [f"text number {i}, " + "e" * (i % 7) for i in range(10)]
RECORDS: list[dict[str, Any]] = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
RECORDS[4]["text"] = ""
EXPECTED = [r["text"].count("e") / 3 if r["text"] else None for r in RECORDS]


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, in small parts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts, "FIRST", 4)
    monkeypatch.setattr(parts, "MOST", 4)
    OneLetter.calls.clear()
    Share.calls.clear()


@pytest.fixture
def refused(fails: Callable[..., str]) -> Callable[..., str]:
    """Return a function that runs a `score` that fails, and returns its error as one line."""
    return lambda *arguments: " ".join(fails("score", *arguments).split())


def write(records: Sequence[Any], name: str = "in.jsonl") -> None:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))


def write_csv(name: str, records: list[dict[str, Any]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


# Input and output


@pytest.mark.parametrize("source", ["in.jsonl", "in.csv"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.csv", "out.parquet"])
def test_all_formats_keep_columns_and_add_scores(source: str, target: str) -> None:
    (write_csv(source, RECORDS) if source == "in.csv" else write(RECORDS))
    main(["score", source, target, BY_LETTERS])
    rows = read_rows(target)
    assert [row["text"] for row in rows] == [record["text"] for record in RECORDS]
    assert [int(row["id"]) for row in rows] == list(range(10))
    np.testing.assert_array_equal(number_column(rows, "letters"), np.array(EXPECTED, float))
    assert list(rows[0]) == ["id", "text", "letters"]
    assert {path.name for path in Path().iterdir()} == {source, target, f".{target}.settings"}


def test_an_input_by_a_url() -> None:
    fsspec.filesystem("memory").pipe("/corpus/in.csv", b"text\na\n\nbb\n")
    main(["score", "memory://corpus/in.csv", "out.csv", "--scorers=fakes.Length"])
    assert [row["length"] for row in read_rows(Path("out.csv"))] == ["1.0", "", "2.0"]


def test_nested_scorers_from_yaml(tiny_llama: Callable[[str], str], one_thread: None) -> None:
    Path("scorers.yaml").write_text(f"""
scorers:
- {{class_path: fakes.OneLetter, init_args: {{letter: o}}}}
- class_path: Accuracy
  init_args:
    model:
      class_path: ctrlreward.scorers.CTRLEval
      init_args: {{model: {tiny_llama(LETTERS)}, aspects: attribute_relevance}}
columns: {{text: output, label: wanted}}
""")
    write([{"output": "so good", "wanted": "positive"}] * 2)
    main(["score", "in.jsonl", "out.jsonl", "--config", "scorers.yaml"])
    rows = read_rows(Path("out.jsonl"))
    assert [row["letters"] for row in rows] == [1.0, 1.0]
    assert all(0 < row["label_probability"] < 1 for row in rows)
    assert OneLetter.calls == [1]  # equal texts are scored once


@pytest.mark.parametrize("option", ["--config=reward.yaml", "--config reward.yaml"])
def test_the_scorers_of_a_reward_in_yaml(option: str) -> None:
    Path("reward.yaml").write_text("""
components:
  most: &letters {scorer: fakes.OneLetter, weight: 0.5, score: letters, letter: o}
  again: {<<: *letters, weight: 2}
  shares: [{class_path: fakes.Share, init_args: {letters: g}}, 0.1]
  longest: fakes.Length
  also: {function: fakes.lengths}
aggregate: minimum
""")
    write([{"text": "so good"}])
    main(["score", "in.jsonl", "out.jsonl", *option.split()])
    (row,) = read_rows("out.jsonl")
    expected = {"letters": 1.0, "share": 1 / 6, "length": 7.0, "e": 0.0, "lengths": 7.0}
    assert row == {"text": "so good", **expected}
    assert OneLetter.calls == [1]  # one scorer for two components


def test_a_score_without_its_column_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.csv").write_text("text\nA good soup.\n")
    main(["score", "in.csv", "out.csv", "--scorers=LexiconSentiment"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "left out" in line)
    assert line.startswith("accuracy ")
    assert line.endswith(" label")
    assert read_rows("out.csv")[0].keys() == {"text", "polarity"}


def test_systems_are_scored_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A score that compares texts with each other, and the summary, are of one system each."""
    texts = {"A": ["a", "a bc", ""], "B": ["abcd", "abcde", "abcdef"]}
    rows = [{"text": text, "system": name} for name in "AB" for text in texts[name]]
    write(rows[::2] + rows[1::2])
    main(["score", "in.jsonl", "out.jsonl", "--scorers", "fakes.Rank", "--by=system"])
    printed = [line.split("│") for line in capsys.readouterr().out.splitlines() if "↑ │" in line]
    written = read_rows("out.jsonl")
    for name, own in texts.items():
        alone = Rank().score(own)["rank"]
        found = {row["text"]: row["rank"] for row in written if row["system"] == name}
        assert found == {t: None if np.isnan(r) else r for t, r in zip(own, alone, strict=True)}
        (line,) = [cells for cells in printed if "rank" in cells[1] and cells[2].strip() == name]
        assert float(line[3]) == pytest.approx(np.nanmean(alone), abs=1e-4)
        assert [int(line[-3]), int(line[-2])] == [3, int(np.isnan(alone).sum())]


@pytest.mark.parametrize("prompt", ["prompt", "what to do"])
@pytest.mark.parametrize("names", ["AB", "ABC", "A"])
def test_the_comparison_that_is_advised_runs(
    names: str, prompt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write([{"text": t, prompt: t[0], "who is": n} for t in ("ab", "cde") for n in names])
    options = ["--scorers=fakes.Length", "--by=who is", f"--columns.prompt={prompt}"]
    main(["score", "in.jsonl", "my out.jsonl", *options])
    advised = [line for line in capsys.readouterr().out.splitlines() if " compare " in line]
    assert len(advised) == (len(names) > 1)
    for line in advised:
        main(shlex.split(line.partition("ctrlreward ")[2]))
        assert f"paired by {prompt!r}" in capsys.readouterr().out


def test_labels_of_the_file_are_mapped() -> None:
    write([{"text": "Lovely soup.", "mood": 1}, {"text": "Awful soup.", "mood": 0}])
    options = ["--columns.label", "mood", "--scorers=LexiconSentiment"]
    main(["score", "in.jsonl", "out.jsonl", *options, "--label-map", "0=negative", "1=positive"])
    found = read_rows(Path("out.jsonl"))
    assert [(row["mood"], row["accuracy"]) for row in found] == [(1, 1.0), (0, 1.0)]


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_text_that_is_not_unicode_is_one_nan_and_one_warning(
    output: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = "soup \ud800 cold"
    texts = [f"text {max(i, 1)}" for i in range(12)]
    texts[9] = bad
    write([{"text": text} for text in texts])
    scorers = ["--scorers", "fakes.Length", "fakes.OneLetter", "fakes.Rank"]
    main(["score", "in.jsonl", output, *scorers])
    (warning,) = [message for message in caplog.messages if "in.jsonl" in message]
    assert "in.jsonl:10: " in warning
    found = read_rows(Path(output))
    assert found[9]["text"] == (bad if output == "out.jsonl" else r"soup \ud800 cold")
    for name in ("length", "letters", "rank"):
        assert [i for i, row in enumerate(found) if row[name] in (None, "")] == [9]
    ranks = number_column(found, "rank")
    np.testing.assert_array_equal(ranks, Rank().score(Samples(texts))["rank"])
    main(["score", "in.jsonl", output, *scorers])  # it is complete, to the escape


# Shards


@pytest.mark.parametrize("source", ["in.jsonl", "in.csv", "in.parquet"])
@pytest.mark.parametrize("n", [3, 10])
def test_shards_are_the_whole_file(n: int, source: str, refused: Callable[..., str]) -> None:
    write(RECORDS)
    if source == "in.csv":
        write_csv(source, RECORDS)
    if source == "in.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), source)
    main(["score", source, "whole.jsonl", BY_LETTERS])
    for i in range(1, n + 1):
        main(["score", source, f"out{i}.jsonl", BY_LETTERS, f"--shard={i}/{n}"])
    written = b"".join(Path(f"out{i}.jsonl").read_bytes() for i in range(1, n + 1))
    assert written == Path("whole.jsonl").read_bytes()
    refused(source, "o.jsonl", "--scorers+=fakes.Rank", f"--shard=1/{n}")


# Interrupted runs

STOPPED = [BY_LETTERS, "--scorers+=fakes.Share"]
LOG = Path("out.csv.partial.jsonl")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while the second of two scorers scores row 5 of 10."""
    write(RECORDS)
    monkeypatch.setenv("KILL_AT", TEXTS[5])
    process = multiprocessing.get_context("fork").Process(
        target=main, args=(["score", "in.jsonl", "out.csv", *STOPPED],)
    )
    process.start()
    process.join(60)
    monkeypatch.delenv("KILL_AT")
    assert process.exitcode == -signal.SIGKILL
    assert not Path("out.csv").exists()


@pytest.mark.parametrize("torn", ["", '{"share": [1'])
def test_a_killed_run_resumes(torn: str, stopped: None, refused: Callable[..., str]) -> None:
    options = [BY_LETTERS, "--scorers.letter=t", *STOPPED[1:]]
    assert "other scorers." in refused("in.jsonl", "out.csv", *options)
    error = refused("in.jsonl", "out.csv", *STOPPED, "--columns.label=text")
    assert "other columns." in error
    with open(LOG, "a") as file:
        file.write(torn)
    options = [BY_LETTERS, "--scorers.device=cuda", *STOPPED[1:]]
    main(["score", "in.jsonl", "out.csv", *options])  # the device may change
    assert OneLetter.calls == Share.calls == [3, 2]  # one text is empty
    rows = read_rows(Path("out.csv"))
    assert [row["text"] for row in rows] == [record["text"] for record in RECORDS]
    np.testing.assert_array_equal(number_column(rows, "letters"), np.array(EXPECTED, np.float64))
    shares = Share().score([record["text"] for record in RECORDS])["share"]
    np.testing.assert_allclose(number_column(rows, "share"), shares)
    assert not LOG.exists()


def test_a_log_that_was_cut_off_or_is_of_another_version_or_input_is_refused(
    stopped: None, refused: Callable[..., str]
) -> None:
    """An input that was edited also in a column that no scorer reads: the output would mix both."""
    settings, part = LOG.read_text().splitlines()
    OneLetter.calls.clear()
    for edited in ([*RECORDS[:-1], {**RECORDS[-1], "id": 99}], RECORDS[:-1]):
        write(edited)
        assert "other rows." in refused("in.jsonl", "out.csv", *STOPPED)
    write(RECORDS)
    other = {**json.loads(settings), "versions": {"ctrlreward": "0.3.0"}}
    for content in (
        f"{json.dumps(other)}\n{part}\n",
        f"{settings}\n{part[:-9]}\n",
        f"{settings[9:]}\n",
    ):
        LOG.write_text(content)
        assert str(LOG) in refused("in.jsonl", "out.csv", *STOPPED)
        assert LOG.read_text() == content
    assert OneLetter.calls == []


def test_a_file_that_a_scorer_reads_may_not_change(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    write(RECORDS)
    Path("vowels.yaml").write_text("aeiou")
    command = ["in.jsonl", "out.csv", "--scorers=fakes.Share", "--scorers.letters=vowels.yaml"]
    monkeypatch.setenv("KILL_AT", TEXTS[5])
    process = multiprocessing.get_context("fork").Process(target=main, args=(["score", *command],))
    process.start()
    process.join(60)
    monkeypatch.delenv("KILL_AT")
    assert LOG.exists()
    Path("vowels.yaml").write_text("aeiouy")
    assert "other scorers." in refused(*command)


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_complete_output_is_not_scored_again(output: str, refused: Callable[..., str]) -> None:
    records = [record | {"none": None, "nan": float("nan")} for record in RECORDS]
    write(records)
    command = ["in.jsonl", output, BY_LETTERS]
    main(["score", *command])
    content = Path(output).read_bytes()
    main(["score", *command])
    assert OneLetter.calls == [4, 3, 2]  # one text is empty
    for other in (["--scorers+=fakes.Rank"], ["--scorers.letter=t"], ["--by=id"]):
        assert f"{output} exists" in refused(*command, *other)
    for edited in (records[:-1], [*records, records[0]], [{**records[0], "id": 9}, *records[1:]]):
        write(edited)
        assert f"{output} exists" in refused(*command)
    assert Path(output).read_bytes() == content
    write(records)
    Path(output).write_bytes(content + b"\n")  # as another program would
    assert f"{output} exists" in refused(*command)


def test_a_second_process_is_refused(refused: Callable[..., str]) -> None:
    write(RECORDS)
    command = ["in.jsonl", "out.jsonl", BY_LETTERS]
    with open(".out.jsonl.partial.jsonl.lock", "w") as held:  # as another process would
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "out.jsonl.partial.jsonl is in use by another process" in refused(*command)
        assert OneLetter.calls == []
    main(["score", *command])
    assert sorted(path.name for path in Path().iterdir()) == [
        ".out.jsonl.settings",
        "in.jsonl",
        "out.jsonl",
    ]


# Errors

FILES: dict[str, list[dict[str, Any]]] = {
    "in.jsonl": RECORDS,
    "body.jsonl": [{"id": 1, "body": "a text"}],
    "scored.jsonl": [{"text": "a text", "letters": 1}],
    "moods.jsonl": [{"text": "a", "mood": m} for m in ["positive"] * 9 + ["happy"]],
    "prefixes.jsonl": [{"text": "a b", "prefix": p} for p in "aaaaaaaaab"],
}
# Arguments, with what the error names.
WRONG = [
    ("in.jsonl o.csv --scorers CTRLEvl", "CTRLEvl"),
    ("in.jsonl o.csv --scorers CTRLEval --scorers.aspects=consistency", "column 'prefix'"),
    (f"in.jsonl o.csv {BY_LETTERS} --label-map a:b", "a:b"),
    (f"body.jsonl o.csv {BY_LETTERS}", "column 'text'"),
    (f"scored.jsonl o.csv {BY_LETTERS}", "scored.jsonl already has columns"),
    (f"in.jsonl in.jsonl {BY_LETTERS}", "in.jsonl is the input"),
    ("moods.jsonl o.csv --scorers LexiconSentiment --columns.label mood", "moods.jsonl:10: mood"),
    (f"prefixes.jsonl o.csv {BY_LETTERS}", "prefixes.jsonl:10: prefix"),
    (f"in.tsv o.csv {BY_LETTERS}", "in.tsv must end"),
    (f"in.jsonl o.csv {BY_LETTERS} --config none.yaml", "none.yaml"),
    (f"in.jsonl o.csv {BY_LETTERS} --config in.jsonl", "in.jsonl is not YAML"),
    *((f"in.jsonl o.csv {BY_LETTERS} --shard={s}", "shard") for s in ("0/2", "3/2", "1")),
    *((f"{file} o.csv {BY_LETTERS}", file) for file in ("in.json", "memory://no/such.csv")),
    (f"in.jsonl memory://o.csv {BY_LETTERS}", "memory://o.csv"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_mistakes_are_named_and_write_nothing(
    arguments: str, message: str, refused: Callable[..., str]
) -> None:
    """With the row that is wrong, before anything is scored."""
    for name, records in FILES.items():
        write(records, name)
    before = sorted(Path().iterdir())
    assert message in refused(*arguments.split())
    assert sorted(Path().iterdir()) == before
    assert OneLetter.calls == []
