"""`ctrlreward score` on rows that are wrong, empty, edited and mapped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from corpus.conftest import write_jsonl
from fakes import Rank

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.scorers import parts
from ctrlreward.tables.rows import read_rows

pytestmark = pytest.mark.usefixtures("at_home")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FIRST", 4)
    monkeypatch.setattr(parts, "MOST", 4)


def rows(count: int = 12, **changes: Any) -> list[dict[str, Any]]:
    """Rows of which the first two are equal; a change is `row_9={"text": 3}`."""
    made: list[dict[str, Any]] = [{"text": f"text {max(i, 1)}"} for i in range(count)]
    for name, cells in changes.items():
        made[int(name.removeprefix("row_"))].update(cells)
    return made


def write(records: list[dict[str, Any]], name: str = "in.jsonl") -> None:
    write_jsonl(name, records)


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_text_that_is_not_unicode_is_one_nan_and_one_warning(
    output: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = "soup \ud800 cold"
    write(rows(row_9={"text": bad}))
    scorers = ["--scorers", "fakes.Length", "fakes.Odd", "fakes.Rank"]
    main(["score", "in.jsonl", output, *scorers])
    (warning,) = [message for message in caplog.messages if "in.jsonl" in message]
    assert "in.jsonl:10: " in warning
    found = read_rows(Path(output))
    assert found[9]["text"] == (bad if output == "out.jsonl" else r"soup \ud800 cold")
    for name in ("length", "letters", "rank"):
        failed = [i for i, row in enumerate(found) if row[name] in (None, "")]
        assert failed == [9]
    in_process = Rank().score(Samples([row["text"] for row in rows(row_9={"text": bad})]))["rank"]
    ranks = [np.nan if row["rank"] in (None, "") else float(row["rank"]) for row in found]
    np.testing.assert_array_equal(ranks, in_process)
    main(["score", "in.jsonl", output, *scorers])  # it is complete, to the escape


WRONG: dict[str, tuple[list[dict[str, Any]], str]] = {
    "mood": (
        [{"text": "good soup", "mood": "positive"}] * 9 + [{"text": "a", "mood": "happy"}],
        "LexiconSentiment --columns.label mood",
    ),
    "prefix": (
        [{"text": "a b", "prefix": "a"}] * 9 + [{"text": "a b", "prefix": "b"}],
        "fakes.Length",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named_before_anything_is_scored(
    case: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    records, scorers = WRONG[case]
    write(records)
    monkeypatch.setattr(parts, "score", lambda *_: pytest.fail("scoring was started"))
    options = ["--scorers", *scorers.split()]
    error = refused("in.jsonl", "out.jsonl", *options)
    assert "in.jsonl:10: " in error
    assert case in error


def test_what_a_scorer_says_names_the_row_of_the_user(caplog: pytest.LogCaptureFixture) -> None:
    write(rows(7, row_6={"text": "odd"}))
    with caplog.at_level("WARNING"):
        main(["score", "in.jsonl", "out.jsonl", "--scorers=fakes.Odd"])
    assert any("in.jsonl:7: it is odd" in line for line in caplog.messages)


def test_an_error_of_a_scorer_names_the_row(refused: Callable[..., str]) -> None:
    write(rows(7, row_6={"text": "bad"}))
    error = refused("in.jsonl", "out.csv", "--scorers=fakes.Length")
    assert error.endswith("error: in.jsonl:7: text = 'bad': give a good one")


def test_an_input_that_was_edited_between_two_runs_is_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    """Also in a column that no scorer reads: the output would have rows of both."""
    calls = tmp_path / "calls"
    calls.mkdir()
    scorers = ["--scorers", "fakes.Length", f"--scorers.folder={calls}"]
    command = ["in.jsonl", "out.jsonl", *scorers]
    write(rows(12, row_9={"text": "bad"}))
    assert "in.jsonl:10: text = 'bad'" in refused(*command)
    assert len(list(calls.iterdir())) == 2
    for edited in (
        rows(12, row_9={"text": "good"}),
        rows(11),
        rows(12, row_9={"text": "bad", "id": 1}),
    ):
        write(edited)
        assert "sha256 of the rows" in refused(*command)
    assert len(list(calls.iterdir())) == 2
    Path("out.jsonl.partial.jsonl").unlink()
    write(rows(12))
    main(["score", *command])
    assert len(read_rows(Path("out.jsonl"))) == 12


def test_an_input_by_a_url() -> None:
    fsspec.filesystem("memory").pipe("/corpus/in.csv", b"text\na\n\nbb\n")
    main(["score", "memory://corpus/in.csv", "out.csv", "--scorers=fakes.Length"])
    assert [row["length"] for row in read_rows(Path("out.csv"))] == ["1.0", "", "2.0"]


def test_labels_of_the_file_are_mapped() -> None:
    texts = ("Lovely soup.", "Awful soup.")
    write([{"text": text, "mood": mood} for text, mood in zip(texts, (1, 0), strict=True)])
    options = ["--columns.label", "mood", "--scorers=LexiconSentiment"]
    main(["score", "in.jsonl", "out.jsonl", *options, "--label-map", "0=negative", "1=positive"])
    found = read_rows(Path("out.jsonl"))
    assert [(row["mood"], row["accuracy"]) for row in found] == [(1, 1.0), (0, 1.0)]


@pytest.mark.parametrize("source", ["in.csv", "in.jsonl"])
def test_a_scorer_reads_its_attribute(source: str) -> None:
    """Of a column for each attribute, or of an object; all columns are copied as they were."""
    rows = [
        {"text": "A lovely soup.", "sentiment": "positive", "topic": "food"},
        {"text": "A lovely trip.", "sentiment": "negative", "topic": "travel"},
    ]
    if source == "in.csv":
        lines = [",".join(row.values()) for row in rows]
        Path(source).write_text("\n".join([",".join(rows[0]), *lines, ""]))
        columns = ["--columns.label=sentiment,topic"]
    else:
        rows = [{"text": row.pop("text"), "label": row} for row in rows]
        Path(source).write_text("\n".join([*map(json.dumps, rows), ""]))
        columns = []
    options = ["--scorers", "LexiconSentiment", "--scorers.attribute=sentiment"]
    main(["score", source, "out.jsonl", *columns, *options])
    written = read_rows(Path("out.jsonl"))
    assert [row.pop("accuracy") for row in written] == [1.0, 0.0]
    assert [row.pop("polarity") > 0 for row in written] == [True, True]
    assert written == rows
