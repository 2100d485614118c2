"""`ctrlreward score` on rows that are wrong, empty, corrected, mapped and piped."""

from __future__ import annotations

import inspect
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus.conftest import write_jsonl
from shard_scorers import Rank
from warm_python import run_warm

from ctrlreward import Samples, scorers
from ctrlreward.cli import main
from ctrlreward.corpus import score as command
from ctrlreward.corpus.scoring_job import score_file
from ctrlreward.corpus.shard_store import ShardStore
from ctrlreward.models.text_cnn import TextCNN, TextCNNConfig, save_text_cnn
from ctrlreward.tables.row_streams import read_rows

LENGTH = ["--scorers", "shard_scorers.Length", "--chunk=4"]


pytestmark = pytest.mark.usefixtures("at_home")


def rows(count: int = 12, **changes: Any) -> list[dict[str, Any]]:
    """Rows of which the first two are equal; a change is `row_9={"text": 3}`."""
    made: list[dict[str, Any]] = [{"text": f"text {max(i, 1)}"} for i in range(count)]
    for name, cells in changes.items():
        made[int(name.removeprefix("row_"))].update(cells)
    return made


def write(records: list[dict[str, Any]], name: str = "in.jsonl") -> None:
    write_jsonl(name, records)


@pytest.mark.parametrize(
    ("output", "workers"),
    [("out.jsonl", "1"), ("out.csv", "1"), ("out.parquet", "1"), ("out.jsonl", "2")],
)
def test_a_text_that_is_not_unicode_is_one_nan_and_one_warning(
    output: str, workers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = "soup \ud800 cold"
    write(rows(row_9={"text": bad}))
    scorers = ["--scorers", "shard_scorers.Length", "shard_scorers.Odd", "shard_scorers.Rank"]
    main(["score", "in.jsonl", output, *scorers, "--chunk=4", "--workers", workers])
    warnings = [line[9:] for line in capfd.readouterr().err.splitlines() if "in.jsonl" in line]
    assert warnings == ["in.jsonl:10: text is not valid Unicode: its scores are NaN"]
    found = read_rows(Path(output))
    assert found[9]["text"] == (bad if output == "out.jsonl" else r"soup \ud800 cold")
    for name in ("length", "letters", "rank"):
        failed = [i for i, row in enumerate(found) if row[name] in (None, "")]
        assert failed == [9]
    in_process = Rank().score(Samples([row["text"] for row in rows(row_9={"text": bad})]))["rank"]
    ranks = [np.nan if row["rank"] in (None, "") else float(row["rank"]) for row in found]
    np.testing.assert_array_equal(ranks, in_process)
    main(["score", "in.jsonl", output, *scorers])  # it is complete, to the escape


WRONG: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "label": (
        [{"text": "good soup", "mood": "positive"}] * 9 + [{"text": "a", "mood": "happy"}],
        "LexiconSentiment --columns.labels mood",
        "in.jsonl:10: mood = 'happy' is not a label of the lexicon, which has negative, positive. "
        "Use one of them, or pass --label-map happy=LABEL",
    ),
    "label of a classifier": (
        [{"text": "good soup", "label": "positive"}] * 9 + [{"text": "a", "label": "happy"}],
        "Accuracy --scorers.model=cnn",
        "in.jsonl:10: label = 'happy' is not a label of the classifier, which has negative,",
    ),
    "label in a composite": (
        [{"text": "a", "label": "topic=x", "source": "b"}] * 9
        + [{"text": "a", "label": "topic=y", "source": "b"}],
        'AttributeClassifier --scorers.models={"topic":"cnn2"}',
        "in.jsonl:10: label = 'topic=y': 'y' is not a label of the classifier for 'topic'",
    ),
    "label map": (
        [{"text": "good soup", "label": 1}] * 9 + [{"text": "a", "label": 2}],
        "LexiconSentiment --label-map 0=negative 1=positive",
        "in.jsonl:10: label = '2' is not a key of label_map, which has 0, 1: map every label",
    ),
    "text": (
        rows(row_9={"text": ["a"]}),
        "shard_scorers.Length",
        "in.jsonl:10: text must be a string, got ['a'], a list",
    ),
    "column": (
        [{"text": "a b", "prefix": "a"}] * 9 + [{"text": "a"}],
        "shard_scorers.Length",
        "in.jsonl:10 does not have 'prefix', but the first row has it, must be in all rows",
    ),
    "no text": (
        [{"text": "a", "id": 1}] * 9 + [{"id": 2}],
        "shard_scorers.Length",
        "in.jsonl:10 does not have 'text', but the first row has it, must be in all rows",
    ),
    "prefix": (
        [{"text": "a b", "prefix": "a"}] * 9 + [{"text": "a b", "prefix": "b"}],
        "shard_scorers.Length",
        "in.jsonl:10: prefix = 'b' is not the beginning of in.jsonl:10: text = 'a b'",
    ),
    "value that JSON lacks": (
        rows(row_9={"size": float("inf")}),
        "shard_scorers.Length",
        "in.jsonl:10: the column 'size' has the value inf, which JSON cannot represent",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named_before_anything_is_scored(
    case: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    for folder, labels in (("cnn", ("negative", "positive")), ("cnn2", ("x", "z"))):
        save_text_cnn(TextCNN(TextCNNConfig(("good",), labels, 4)), Path(folder))
        Path(folder, "model.safetensors").unlink()  # no weights are needed
    records, scorers, message = WRONG[case]
    write(records)
    monkeypatch.setattr(ShardStore, "start", lambda *_: pytest.fail("scoring was started"))
    options = ["--scorers", *scorers.split(), "--chunk=4"]
    assert f"error: {message}" in refused("in.jsonl", "out.jsonl", *options)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_a_scorer_says_names_the_row_of_the_user(
    workers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write(rows(6), "in/a.jsonl")
    write([{"text": "x"}, *rows(6, row_3={"text": "odd"})], "in/b.jsonl")
    command = ["score", "in", "out.jsonl", "--scorers=shard_scorers.Odd", "--workers", workers]
    lines = [
        "from ctrlreward.cli import main",
        "if __name__ == '__main__':",
        f"    main({command})",
    ]
    Path("command.py").write_text("\n".join(lines))
    # In a new process: the workers of this one would write to the stderr that it started with.
    printed = run_warm(Path("command.py").resolve(), timeout=120).stderr
    assert "in/b.jsonl:5: text is odd" in printed
    write([{"text": "x"}, *rows(6, row_3={"text": "bad"})], "in/b.jsonl")
    with pytest.raises(SystemExit):
        main(["score", "in", "out.csv", "--scorers=shard_scorers.Length", "--workers", workers])
    assert "error: in/b.jsonl:5: text = 'bad': give a good one" in capfd.readouterr().err


def scored_texts(folder: Path) -> list[str]:
    """First text of each call of `shard_scorers.Length`."""
    return sorted(file.read_text() for file in folder.iterdir() if "-" in file.name)


@pytest.mark.parametrize("killed", [False, True])
def test_a_corrected_input_keeps_the_shards_that_have_not_changed(
    killed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    scorers = ["--scorers", "shard_scorers.Rank", "shard_scorers.Length"]
    command = ["in.jsonl", "out.jsonl", *scorers, f"--scorers.folder={calls}", "--chunk=4"]
    write(rows(22, row_17={"text": "bad"}))
    assert "in.jsonl:18: text = 'bad'" in refused(*command)
    assert scored_texts(calls) == ["text 1", "text 12", "text 4", "text 8"]
    write(corrected := rows(23, row_5={"text": "a longer text"}, row_17={"text": "good"}))
    if killed:  # after the old scores are gone, before the manifest is new
        with monkeypatch.context() as patch:
            patch.setattr(ShardStore, "start", lambda *_: sys.exit(9))
            with pytest.raises(SystemExit, match="9"):
                main(["score", *command])
    for call in calls.iterdir():
        call.unlink()
    main(["score", *command])
    assert "in.jsonl has changed: 3 of 6 shards are kept, except rank" in capsys.readouterr().err
    assert scored_texts(calls) == ["text 16", "text 20", "text 4"]
    write(corrected, "whole.jsonl")
    main(["score", "whole.jsonl", "fresh.jsonl", *scorers, "--chunk=4"])
    assert Path("out.jsonl").read_bytes() == Path("fresh.jsonl").read_bytes()


def test_pipes(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write(rows())
    main(["score", "in.jsonl", "out.jsonl", *LENGTH])
    capfdbinary.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("in.jsonl").read_bytes())))
    before = sorted(Path().iterdir())
    main(["score", "-", "-", *LENGTH])
    out, err = capfdbinary.readouterr()
    assert out == Path("out.jsonl").read_bytes()
    assert b"can't be resumed" in err
    assert b"length" in err  # the summary
    assert sorted(Path().iterdir()) == before
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n{"text": 1}\n')))
    with pytest.raises(SystemExit):
        main(["score", "-", "-", *LENGTH])
    out, err = capfdbinary.readouterr()
    assert (out, b"error: stdin:2: text must be a string, got 1" in err) == (b"", True)


def test_labels_of_the_file_are_mapped() -> None:
    texts = ("Lovely soup.", "Awful soup.")
    write([{"text": text, "mood": mood} for text, mood in zip(texts, (1, 0), strict=True)])
    options = ["--columns.labels", "mood", "--scorers=LexiconSentiment"]
    main(["score", "in.jsonl", "out.jsonl", *options, "--label-map", "0=negative", "1=positive"])
    found = read_rows(Path("out.jsonl"))
    assert [(row["mood"], row["accuracy"]) for row in found] == [(1, 1.0), (0, 1.0)]


def test_what_is_known_without_pytorch() -> None:
    members = {name: getattr(scorers, name) for name in scorers.__all__}
    known = [
        name
        for name, member in members.items()
        if isinstance(member, type)
        and issubclass(member, scorers.Scorer)
        and not inspect.isabstract(member)
    ]
    assert list(command.SCORERS) == known
    options = set(inspect.signature(score_file).parameters) - {"input", "output", "identity"}
    assert set(command.OPTIONS) == options


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
