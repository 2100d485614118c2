"""`ctrlreward score`, with scorers that count letters instead of models."""

from __future__ import annotations

import csv
import fcntl
import json
import logging
import multiprocessing
import re
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from corpus.conftest import write_jsonl
from shard_scorers import Interrupted, Letters, Rank

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.corpus import workers
from ctrlreward.scorers import CTRLEval, Perplexity
from ctrlreward.scorers.base import Component, Scores, score
from ctrlreward.tables.row_streams import read_rows
from ctrlreward.tables.table_columns import number_column

LETTERS = " abcdefghijklmnopqrstuvwxyzT."
BY_LETTERS = "--scorers+=shard_scorers.Letters"

pytestmark = pytest.mark.usefixtures("at_home")

TEXTS = [f"text number {i}, " + "e" * (i % 7) for i in range(10)]
RECORDS: list[dict[str, Any]] = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
RECORDS[4]["text"] = ""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    Letters.calls.clear()
    Interrupted.calls.clear()


def write_csv(name: str, records: list[dict[str, Any]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def expected() -> list[float | None]:
    return [record["text"].count("e") / 3 if record["text"] else None for record in RECORDS]


# Input and output


@pytest.mark.parametrize("source", ["in.jsonl", "in.csv"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.csv", "out.parquet"])
def test_all_formats_keep_columns_and_add_scores(source: str, target: str) -> None:
    (write_csv if source == "in.csv" else write_jsonl)(source, RECORDS)
    main(["score", source, target, BY_LETTERS, "--chunk=3"])
    if target == "out.jsonl":
        rows = [json.loads(line) for line in Path(target).read_text().splitlines()]
    elif target == "out.csv":
        with open(target, newline="") as file:
            rows = list(csv.DictReader(file))
        rows = [
            row | {"letters": float(row["letters"]) if row["letters"] else None} for row in rows
        ]
    else:
        rows = pyarrow.parquet.read_table(target).to_pylist()
    assert [row["text"] for row in rows] == [record["text"] for record in RECORDS]
    assert [int(row["id"]) for row in rows] == list(range(10))
    assert [row["letters"] for row in rows] == expected()
    assert list(rows[0]) == ["id", "text", "letters"]
    assert not Path(f"{target}.partial").exists()


@pytest.mark.parametrize("_run", [1, 2])  # the second one in this process has its own
def test_a_table_of_failed_rows_has_few_warnings(
    _run: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The handler of last resort, as in a terminal.
    monkeypatch.setattr(logging.root, "handlers", [])
    write_jsonl("in.jsonl", [{"text": ""}] * 40 + [{"text": "tea"}])
    main(["score", "in.jsonl", "out.jsonl", "--scorers+=Repetition", "--chunk=1"])
    lines = [line for line in capsys.readouterr().err.splitlines() if " is empty: " in line]
    assert len(lines) == workers._SHOWN
    assert lines[0] == "in.jsonl:1: text is empty: repetition is NaN"
    assert lines[-1].endswith(" is NaN (further ones are not shown)")


@pytest.mark.parametrize(
    ("texts", "numbers"), [(["3", "-0.5", "", "1e-05"], True), (["3", "4 tea"], False)]
)
def test_a_column_of_numbers_is_said_once(
    texts: list[str], numbers: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv("in.csv", [{"rating": text, "id": i} for i, text in enumerate(texts)])
    main(["score", "in.csv", "out.csv", BY_LETTERS, "--columns.text=rating"])
    said = capsys.readouterr().err.count("in.csv: rating has numbers or nothing in the first rows")
    assert said == numbers


def test_nested_scorers_from_yaml(tiny_llama: Callable[[str], str], one_thread: None) -> None:
    model = {"model": tiny_llama(LETTERS)}
    evaluators = {
        "class_path": "ctrlreward.scorers.CTRLEval",
        "init_args": {**model, "aspects": ["attribute_relevance"]},
    }
    accuracy = {"class_path": "Accuracy", "init_args": {"model": evaluators}}
    config = {
        "scorers": [
            {"class_path": "shard_scorers.Letters", "init_args": {"letter": "o"}},
            {"class_path": "ctrlreward.scorers.Accuracy", "init_args": accuracy["init_args"]},
        ],
        "columns": {"text": "output", "label": "wanted"},
        "chunk": 1,
    }
    Path("scorers.yaml").write_text(yaml.safe_dump(config))
    write_jsonl("in.jsonl", [{"output": "so good", "wanted": "positive"}] * 2)
    main(["score", "in.jsonl", "out.jsonl", "--config", "scorers.yaml", "--chunk=2"])
    rows = read_rows(Path("out.jsonl"))
    assert [row["letters"] for row in rows] == [1.0, 1.0]
    assert all(0 < row["label_probability"] < 1 for row in rows)
    assert Letters.calls == [1]  # equal texts are scored once


def test_scorers_that_are_not_pointwise_get_all_rows() -> None:
    write_jsonl("in.jsonl", RECORDS)
    main(["score", "in.jsonl", "out.jsonl", "--scorers+=shard_scorers.Rank", "--chunk=2"])
    rows = [row["rank"] for row in read_rows(Path("out.jsonl"))]
    direct = Rank().score(Samples([record["text"] for record in RECORDS]))["rank"]
    assert rows == direct.tolist()


def test_names_distinguish_scorers_with_the_same_scores() -> None:
    write_jsonl("in.jsonl", RECORDS)
    options = [BY_LETTERS, BY_LETTERS, "--scorers.letter=t"]
    main(["score", "in.jsonl", "out.jsonl", *options, "--names=[e,t]"])
    rows = read_rows(Path("out.jsonl"))
    assert [row["e.letters"] for row in rows] == expected()
    assert rows[0]["t.letters"] == TEXTS[0].count("t") / 3


@pytest.mark.parametrize(
    "arguments",
    [
        "in.jsonl out.jsonl --scorers shard_scorers.Letters shard_scorers.Rank",
        "--scorers shard_scorers.Letters shard_scorers.Rank in.jsonl out.jsonl",
        "in.jsonl --scorers shard_scorers.Letters,shard_scorers.Rank out.jsonl",
        "in.jsonl out.jsonl --scorers shard_scorers.Letters --scorers shard_scorers.Rank",
        "in.jsonl out.jsonl --scorers+=shard_scorers.Letters --scorers+=shard_scorers.Rank",
        "in.jsonl out.jsonl --scorers=[shard_scorers.Letters,shard_scorers.Rank]",
        "in.jsonl out.jsonl --config list.yaml",
        "in.jsonl out.jsonl --config one.yaml --scorers+=shard_scorers.Rank",
        "in.jsonl out.jsonl --config other.yaml --scorers shard_scorers.Letters shard_scorers.Rank",
    ],
)
def test_scorers_can_be_given_in_many_ways(arguments: str) -> None:
    write_jsonl("in.jsonl", RECORDS)
    for name, scorers in (
        ("list", ["shard_scorers.Letters", "shard_scorers.Rank"]),
        ("one", ["shard_scorers.Letters"]),
        ("other", ["shard_scorers.Interrupted"]),
    ):
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"scorers": scorers}))
    main(["score", *arguments.split()])
    rows = read_rows(Path("out.jsonl"))
    assert list(rows[0]) == ["id", "text", "letters", "rank"]
    assert [row["letters"] for row in rows] == expected()


def test_the_summary_shows_mean_direction_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    main(["score", "in.jsonl", "out.csv", BY_LETTERS, "--scorers+=shard_scorers.Rank"])
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    mean = np.mean([value for value in expected() if value is not None])
    assert ["letters", "↑", f"{mean:.4f}", "10", "1"] in lines
    assert any(line[:2] == ["rank", "↓"] and line[-2:] == ["10", "0"] for line in lines)


# Interrupted runs

STOPPED = [BY_LETTERS, "--scorers+=shard_scorers.Interrupted", "--chunk=4"]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while the second of two scorers scores row 5 of 10."""
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


def test_a_killed_run_resumes(stopped: None, refused: Callable[..., str]) -> None:
    partial = Path("out.csv.partial")
    assert len(list(partial.iterdir())) == 1 + 3 + 1  # three shards, then one
    options = [BY_LETTERS, "--scorers.letter=t", *STOPPED[1:]]
    error = refused("in.jsonl", "out.csv", *options)
    assert 'with other settings: scorers.0.0.init_args.letter "e", not "t". Resume' in error
    error = refused("in.jsonl", "out.csv", *STOPPED, "--columns.label=text")
    assert 'with other settings: columns.label "label", not "text". Resume' in error
    (partial / ".00000001-1.json.unfinished").write_text('{"len')
    options = [BY_LETTERS, "--scorers.device=cuda", *STOPPED[1:-1], "--chunk=3"]
    main(["score", "in.jsonl", "out.csv", *options])  # device and chunk may change
    assert Letters.calls == []
    assert Interrupted.calls == [4, 2]  # in the shards that the run began with
    rows = read_rows(Path("out.csv"))
    assert [row["text"] for row in rows] == [record["text"] for record in RECORDS]
    assert number_column(rows, "length").tolist() == [len(record["text"]) for record in RECORDS]
    assert np.array_equal(
        number_column(rows, "letters"), np.array(expected(), dtype=np.float64), True
    )
    assert not partial.exists()


def raises(texts: list[str]) -> list[float]:
    raise ValueError("no score")


def test_a_run_of_a_function_can_be_resumed_by_another_process(refused: Callable[..., str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    function = f"{__name__}.raises"
    refused(
        "in.jsonl",
        "o.csv",
        "--scorers=FunctionScorer",
        f"--scorers.function={function}",
        "--chunk=4",
    )
    manifest = json.loads(Path("o.csv.partial/manifest.json").read_text())
    assert manifest["settings"]["scorers"][0][0]["init_args"]["function"] == function


def test_a_full_disk_keeps_the_shards_and_is_named(
    stopped: None, refused: Callable[..., str]
) -> None:
    partial = Path("out.csv.partial")
    before = {file.name: file.read_bytes() for file in partial.iterdir()}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
    try:
        error = refused("in.jsonl", "out.csv", *STOPPED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert re.search(r"File too large: '\S*out.csv.partial/\S+.json'", error), error
    assert "Earlier files are complete. Free space, or write elsewhere, and resume." in error
    assert before.items() <= {f.name: f.read_bytes() for f in partial.iterdir()}.items()
    main(["score", "in.jsonl", "out.csv", *STOPPED])
    rows = read_rows(Path("out.csv"))
    assert [row["text"] for row in rows] == [record["text"] for record in RECORDS]


def test_scorers_of_one_model_are_stored_chunk_by_chunk(
    tiny_llama: Callable[[str], str],
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tiny_llama(LETTERS)
    records = [{"text": f"Tea {word}", "label": "positive"} for word in ("a", "b", "c", "d", "e")]
    write_jsonl("in.jsonl", records)
    command = ["in.jsonl", "out.jsonl", "--chunk=2", "--scorers", "CTRLEval"]
    command += ["--scorers.aspects=attribute_relevance", f"--scorers.model={folder}"]
    command += ["--scorers", "Perplexity", f"--scorers.model={folder}"]
    calls: list[int] = []

    def interrupted(components: Mapping[str, Component], samples: Samples) -> dict[str, Scores]:
        calls.append(len(samples))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(components, samples)

    monkeypatch.setattr(workers, "score", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["score", *command])
    assert ended.value.code == 130
    assert "interrupted: repeat the command to resume" in capsys.readouterr().err
    shards = sorted(Path("out.jsonl.partial").glob("*-*.json"))
    names = ["attribute_relevance", "perplexity", "log_likelihood"]
    assert [list(json.loads(shard.read_text())) for shard in shards] == [names, names]
    main(["score", *command])
    assert calls == [2, 2, 1, 1]
    samples = Samples([r["text"] for r in records], labels=[r["label"] for r in records])
    direct = CTRLEval(folder, aspects="attribute_relevance").score(samples)
    direct |= Perplexity(folder).score(samples)
    rows = read_rows(Path("out.jsonl"))
    for name in names:
        assert [row[name] for row in rows] == pytest.approx(direct[name].tolist(), rel=1e-5)


def test_a_missing_model_is_named_before_another_scorer_scores(refused: Callable[..., str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    options = [BY_LETTERS, "--scorers", "Perplexity", "--scorers.model=/nowhere", "--chunk=3"]
    assert "model = '/nowhere' is neither" in refused("in.jsonl", "out.csv", *options)
    assert Letters.calls == []
    assert not Path("out.csv.partial").exists()


@pytest.mark.parametrize("content", ["", '{"letters": [1', "[1]"])
def test_a_shard_that_was_cut_off_is_named_and_scored_again(
    stopped: None, content: str, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    shard, *_ = sorted(Path("out.csv.partial").glob("0*.json"))
    shard.write_text(content)
    error = refused("in.jsonl", "out.csv", *STOPPED)
    assert f"{shard} is damaged or was cut off (" in error
    assert "Delete it and repeat the command, which scores its rows again" in error
    shard.unlink()
    main(["score", "in.jsonl", "out.csv", *STOPPED])
    capsys.readouterr()
    assert Path("out.csv").exists()


def test_an_unfinished_run_of_another_version_is_refused(
    stopped: None, refused: Callable[..., str]
) -> None:
    manifest = Path("out.csv.partial/manifest.json")
    content = json.loads(manifest.read_text())
    content["settings"]["version"] = "0.3.0"
    manifest.write_text(json.dumps(content))
    error = refused("in.jsonl", "out.csv", *STOPPED)
    assert 'out.csv.partial was started with other settings: version "0.3.0", not' in error
    assert "delete the folder to start over" in error
    manifest.write_text(manifest.read_text()[:-9])
    error = refused("in.jsonl", "out.csv", *STOPPED)
    assert "manifest.json is not a manifest of shards" in error
    assert (Letters.calls, Interrupted.calls) == ([], [])


def test_a_complete_output_is_not_scored_again(
    refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl("in.jsonl", RECORDS)
    command = ["in.jsonl", "out.jsonl", BY_LETTERS]
    main(["score", *command])
    content = Path("out.jsonl").read_bytes()
    main(["score", *command])
    printed = capsys.readouterr().out
    assert "out.jsonl is already complete. Delete it to score in.jsonl again" in printed
    assert Path("out.jsonl").read_bytes() == content
    assert Letters.calls == [10]
    error = refused(*command[:2], "--scorers+=shard_scorers.Rank")
    assert "out.jsonl exists but is not a complete output of this command: it has no rank" in error
    write_jsonl("in.jsonl", RECORDS[:-1])
    error = refused(*command)
    assert "it has 10 rows instead of 9. Use another output, or delete it" in error


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_complete_output_of_other_texts_is_refused(
    output: str, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["in.jsonl", output, BY_LETTERS]
    write_jsonl("in.jsonl", [record | {"none": None} for record in RECORDS])
    main(["score", *command])
    main(["score", *command])
    assert f"{output} is already complete" in capsys.readouterr().out
    changed = [record | {"none": None} for record in RECORDS]
    changed[3]["text"] = "a new text"
    write_jsonl("in.jsonl", changed)
    error = refused(*command)
    assert f"{output} exists but was made from other rows: text[3] is 'text number 3, eee'" in error
    assert "not 'a new text'. Use another output" in error


def test_a_second_process_is_refused(refused: Callable[..., str]) -> None:
    write_jsonl("in.jsonl", RECORDS)
    command = ["in.jsonl", "out.jsonl", BY_LETTERS]
    with open(".out.jsonl.lock", "w") as held:  # as another process would
        fcntl.flock(held, fcntl.LOCK_EX)
        error = refused(*command)
        assert "out.jsonl is in use by another process. Wait for it" in error
        assert Letters.calls == []
    main(["score", *command])
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "out.jsonl"]


# Errors


# Arguments, with what the error says.
WITHOUT_SCORERS = [
    ("", "the following arguments are required: input, output, scorers scorers: Accuracy, "),
    ("in.jsonl o.csv", "arguments are required: scorers scorers: Accuracy, Alignment,"),
    ("in.jsonl o.csv --scorers", "scorers is empty, must be one or more"),
    ("in.jsonl o.csv --scorers=[]", "scorers is empty, must be one or more"),
    ("in.jsonl o.csv --scorers CTRLEvl", "CTRLEvl (did you mean CTRLEval?) scorers: Accuracy"),
    ("in.jsonl o.csv --scorers+=Perplexty", "Perplexty (did you mean Perplexity?) scorers: "),
    ("in.jsonl o.csv --config bad.yaml", "Similrity (did you mean Similarity?) scorers: "),
    ("in.jsonl o.csv --config none.yaml", "error: No such file: none.yaml"),
    ("in.jsonl o.csv --config=open.yaml", "error: open.yaml:2: is not YAML: expected ','"),
    (
        "in.jsonl o.csv --config arguments.yaml",
        "arguments.yaml:3: scorers.0.init_arg is not a key (did you mean 'init_args'?)",
    ),
    ("in.jsonl o.csv --scorers Zzz", "Zzz scorers: Accuracy"),
    (
        "in.jsonl o.csv --scorers no.Such",
        "no module named 'no'. Install it, or add its folder to PYTHONPATH. scorers: Acc",
    ),
    (
        "in.jsonl o.csv --scorers os.path.join",
        "subclass of Scorer. For a function, use FunctionScorer and its option function. scorers: ",
    ),
    (
        "in.jsonl o.csv --scorers FunctionScorer --scorers.function=words.py:count",
        "words.py:count. Write it with dots, as in package.module.name.",
    ),
    *(
        (
            f"in.jsonl o.csv --scorers CTRLEval --scorers.aspects={given}",
            f"scorers.aspects must be one of coherence, consistency, attribute_relevance{other}, "
            "got 'relevance' (did you mean 'attribute_relevance'?)",
        )
        for given, other in (("relevance", ", all or list"), ("[relevance]", ""))
    ),
    (
        "in.jsonl o.csv --scorers CTRLEval --scorers.calibration=7",
        "error: scorers.calibration must be bool or list, got '7'",
    ),
    (
        "in.jsonl o.csv --scorers FunctionScorer --scorers.function=no.length",
        "scorers.function: no module named 'no'. Install it, or add its folder to PYTHONPATH.",
    ),
    ("in.jsonl o.csv --scorers Scorer", "No such scorer: Scorer"),
    (
        "in.jsonl o.csv --scorers Accuracy",
        "Accuracy needs the column 'label', but the file has only id, text",
    ),
    ("in.jsonl o.csv --scorers Similarity", "Similarity needs the column 'source', but the file"),
    (
        "in.jsonl o.csv --scorers CTRLEval --scorers.aspects=consistency",
        "CTRLEval consistency needs the column 'prefix', but the file has only id, text. Add "
        "the column, or name another one with --columns.prefix=COLUMN. --scorers.help=CTRLEval",
    ),
    ("in.jsonl o.csv --scorers FunctionScorer", "error: scorers lacks function of FunctionScorer"),
    (
        "in.jsonl o.csv --scorers Alignment --scorers.aspects=fluency",
        "error: scorers.aspects must be one of consistency, relevance, preservation, engagingness",
    ),
    ("in.jsonl o.csv --model gpt2 --scorers A", "an option of a scorer is --scorers.model, after"),
    (
        "in.jsonl --output o.csv --scorers Distinct",
        "--output; leave out --output: the usage has the",
    ),
    (
        "in.jsonl o.csv --scorers A --labels positive",
        "each row has its label: name their column with --columns.label=COLUMN",
    ),
    ("in.jsonl o.csv --scorer shard_scorers.Letters", "--scorer (did you mean --scorers?)"),
]
WITH_LETTERS = [
    ("in.jsonl o.csv --scorers.leter=e", "scorers.leter is not an option (did you mean 'letter'?)"),
    ("in.jsonl o.csv --scorers.letter=ab", "letter = 'ab': give one"),
    (
        "in.jsonl o.csv --scorers+=shard_scorers.Letters",
        "two scorers have a score 'letters'. Pass --names",
    ),
    ("in.jsonl o.csv --names=[a,b]", "must be one distinct name per scorer, got ['a', 'b'] for 1"),
    ("in.jsonl o.csv --label-map a:b", "label_map = 'a:b' must be OLD=NEW, such as 0=negative"),
    ("in.jsonl o.csv --chunk=0", "error: chunk must be positive, got 0"),
    ("in.jsonl o.csv --chunk=1e9", "error: chunk must be int, got '1000000000.0'"),
    ("in.jsonl o.csv --chunks 4", "--chunks (did you mean --chunk?)"),
    (
        "in.jsonl o.csv --columns.text=output",
        "text is read from the column 'output', but the file has only id, text",
    ),
    ("in.jsonl o.csv --columns.label=wanted", "label is read from the column 'wanted'"),
    ("in.jsonl o.csv --columns.txt=id", "--columns.txt=id (did you mean --columns.text?)"),
    ("in.jsonl o.csv --columns text=id", "name one column at a time: --columns.text=COLUMN"),
    ("in.jsonl o.csv --config key.yaml", "not accept option 'txt' (did you mean columns.text?)"),
    ("body.csv o.csv", "the column 'text', but the file has only id, body. Name another column"),
    (
        "o.csv in.jsonl",
        "No such file: o.csv. The texts come first, then the output, as in `ctrlreward "
        "score in.jsonl o.csv`",
    ),
    (
        "scored.csv in.jsonl",
        "scored.csv already has columns with the names of scores (letters). Pass --names, one "
        "per scorer, to prefix the names of their scores. If this is the output, put it after",
    ),
    ("inn.jsonl o.csv", "inn.jsonl (did you mean in.jsonl?)"),
    ("none.jsonl o.csv", "No such file or folder: none.jsonl"),
    ("in.jsonl in.jsonl", "in.jsonl is the input. Choose another file"),
    ("in.jsonl .", ". is a folder, but the scores of a file go to a file"),
    (". o.csv", ". is a folder and has files of several formats (.csv, .jsonl), must be a file"),
    ("in.jsonl o", "o must end in one of .jsonl, .csv, .parquet"),
    ("in.jsonl o.txt", "o.txt must end in one of .jsonl"),
]


def with_letters(given: str) -> str:
    """Return arguments with a scorer after the two files."""
    source, target, *options = given.split()
    return " ".join([source, target, "--scorers shard_scorers.Letters", *options])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *WITHOUT_SCORERS,
        *((with_letters(given), message) for given, message in WITH_LETTERS),
    ],
)
def test_first_tries_say_what_to_type(
    arguments: str, message: str, refused: Callable[..., str]
) -> None:
    write_jsonl("in.jsonl", RECORDS)
    write_csv("body.csv", [{"id": 1, "body": "a text"}])
    write_csv("scored.csv", [{"text": "a text", "letters": 1}])
    Path("bad.yaml").write_text("scorers: [Similrity]")
    Path("key.yaml").write_text("columns: {txt: id}")
    Path("open.yaml").write_text("chunk: 4\nscorers: [Perplexity")
    Path("arguments.yaml").write_text(
        "scorers:\n- class_path: Perplexity\n  init_arg: {model: small}\n"
    )
    before = sorted(Path().iterdir())
    error = refused(*arguments.split())
    assert message in error
    usage = "usage: ctrlreward score INPUT OUTPUT --scorers NAME [NAME ...]"
    assert error.startswith((usage, "error: "))
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("names", [("in.parquet", "out.csv"), ("in.csv", "out.parquet")])
def test_parquet_names_its_extra(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    write_csv("in.csv", RECORDS)
    Path("in.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    error = refused(*names, "--scorers", "shard_scorers.Letters")
    assert "needs pyarrow: pip install 'ctrlreward[parquet]'" in error
    assert Letters.calls == []
