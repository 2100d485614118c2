"""`ctrlreward meta-eval`, with scores that are the lengths of the texts."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Share
from scipy import stats

from ctrlreward import Alignment, CTRLEval
from ctrlreward.cli import main
from ctrlreward.scorers import parts


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fails(fails: Callable[..., str]) -> Callable[..., str]:
    """Return a function that runs a command that fails, and returns its error as one line."""
    return lambda *arguments: " ".join(fails("meta-eval", *arguments).split())


def rows_of(path: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    content = json.loads(Path(path).read_text())["correlations"]
    return {(row["score"], row["rating"], row["level"]): row for row in content}


# The user's own files

LENGTHS, GOOD = [3, 5, 9, 2, 6, 7, 4, 4, 8, 0, 3, 6], [1, 3, 5, 1, 2, 5, 2, 3, 4, 9, 2, 3]
MINE = [
    {"output": "x" * n, "by": "abc"[i % 3], "about": f"t{i // 3}", "good": good, "short": -good}
    for i, (n, good) in enumerate(zip(LENGTHS, GOOD, strict=True))
]
COMMAND = ["meta-eval", "rated", "mine.jsonl", "--ratings=[good,short]"]
COMMAND += ["--columns.text=output", "--cluster=about", "--system=by"]
BY_LETTERS = ["--scorers=fakes.OneLetter", "--scorers.letter=x", "--resamples=100"]


def write(file: str, rows: list[dict[str, Any]]) -> None:
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def mine() -> tuple[list[int], list[int], list[str]]:
    """Write the file; return lengths, ratings and systems of the rows that don't fail."""
    write("mine.jsonl", MINE)
    kept = [row for row in MINE if row["output"]]
    lengths = [len(str(row["output"])) for row in kept]
    return lengths, [int(row["good"]) for row in kept], [str(row["by"]) for row in kept]


def test_correlations_equal_those_of_scipy(
    mine: tuple[list[int], list[int], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*COMMAND, *BY_LETTERS, "--output=out/found.json"])
    printed = capsys.readouterr().out
    lengths, good, systems = mine
    rows = rows_of("out/found.json")
    assert len(rows) == 4
    sample = rows["letters", "good", "sample"]
    assert (sample["n"], sample["failed"]) == (11, 1)
    measures = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    by = np.array(systems)
    means = [[np.array(side)[by == s].mean() for s in "abc"] for side in (lengths, good)]
    for name, measure in measures.items():
        value = measure(lengths, good).statistic
        assert sample[name]["value"] == pytest.approx(value)
        assert sample[name]["low"] <= value <= sample[name]["high"]
        assert f"{value:.4f} ({sample[name]['low']:.2f} to {sample[name]['high']:.2f})" in printed
        assert rows["letters", "short", "sample"][name]["value"] == pytest.approx(-value)
        between = rows["letters", "good", "system"][name]["value"]
        assert between == pytest.approx(measure(*means).statistic)
    assert "letters ↑" in printed


def test_existing_metrics_need_no_texts() -> None:
    Path("mine.csv").write_text("m,good\n1,2\n2,1\n3,5\n5,6\n")
    command = ["rated", "mine.csv", "--ratings=[good]", "--metrics=[m]"]
    main(["meta-eval", *command, "--output=found.json"])
    row = rows_of("found.json")["m", "good", "sample"]
    assert row["kendall"]["value"] == pytest.approx(stats.kendalltau([1, 2, 3, 5], [2, 1, 5, 6])[0])


@pytest.mark.parametrize("nothing", [None, "absent"])
def test_rows_without_a_system_are_left_out_and_without_a_cluster_raise(
    nothing: str | None, fails: Callable[..., str]
) -> None:
    rows: list[dict[str, Any]] = [dict(row, by="abcd"[i % 4]) for i, row in enumerate(MINE)]
    for row in rows[3::4]:
        row |= {"by": nothing}
        if nothing == "absent":
            del row["by"]
    write("mine.jsonl", rows)
    main([*COMMAND, *BY_LETTERS, "--output=found.json"])
    assert rows_of("found.json")["letters", "good", "system"]["n"] == 3
    error = fails(*COMMAND[1:5], *BY_LETTERS, "--cluster=by")
    assert "mine.jsonl:4" in error


# Published formats


def test_the_published_kinds_are_the_scorers_own(
    data_dir: Path, pegasus: str, tiny_causal: Callable[..., str], one_thread: None
) -> None:
    lines = (data_dir / "ctrleval" / "data_senti.txt").read_text("utf-8").splitlines()[:24]
    Path("some.txt").write_text("\n".join(lines) + "\n")
    options = ["--task=sentiment", "--model", pegasus, "--output=found.json", "--resamples=20"]
    main(["meta-eval", "ctrleval", "some.txt", *options])
    labels, prefixes, texts, *ratings = zip(*(line.split("\t") for line in lines), strict=True)
    scores = CTRLEval(pegasus).score(texts, prefixes=prefixes, labels=labels)
    rows = rows_of("found.json")
    assert set(rows) == {(a, b, "sample") for a in scores for b in scores}
    for aspect, column in zip(scores, ratings, strict=True):
        expected = stats.kendalltau(scores[aspect], [float(cell) for cell in column]).statistic
        assert rows[aspect, aspect, "sample"]["kendall"]["value"] == pytest.approx(expected)

    dialogs = [
        {"response": f"i sail {'often ' * i}", "dialog_history": "hi", "fact": "i sail",
         "model": "abc"[i % 3], "engaging": i % 4, "uses_knowledge": str(i)}
        for i in range(9)
    ]  # fmt: skip
    Path("chat.json").write_text(json.dumps(dialogs))
    model = "minilm-l6"
    main(["meta-eval", "ctc", "chat.json", "--model", model, "--output=chat_found.json"])
    columns = {"histories": "dialog_history", "contexts": "fact"}
    samples = {name: [row[key] for row in dialogs] for name, key in columns.items()}
    scorer = Alignment(model, ["engagingness", "groundedness"])
    scores = scorer.score([row["response"] for row in dialogs], **samples)
    rows = rows_of("chat_found.json")
    assert {key[0] for key in rows} == {"engagingness", "groundedness"}
    expected = stats.pearsonr(scores["groundedness"], range(9)).statistic
    value = rows["groundedness", "uses_knowledge", "sample"]["pearson"]["value"]
    assert value == pytest.approx(expected)
    assert rows["groundedness", "engaging", "system"]["n"] == 3


@pytest.mark.parametrize("kind", ["rated", "preferences"])
def test_a_killed_command_continues(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST", 2)
    Share.calls.clear()
    rows = [{"text": f"{i} text{'e' * i}", "rating": i % 3} for i in range(9)]
    if kind == "preferences":
        rows = [{"chosen": row["text"], "rejected": f"{row['text']}e"} for row in rows]
    last = next(iter(rows[6].values()))
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["meta-eval", kind, "in.jsonl", "--scorers+=fakes.Share", "--output", "o.json"]
    command += ["--ratings", "rating"] if kind == "rated" else []
    monkeypatch.setenv("KILL_AT", str(last))
    process = multiprocessing.get_context("fork").Process(target=main, args=(command,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    monkeypatch.delenv("KILL_AT")
    main(command)
    assert sum(Share.calls) == (4 if kind == "rated" else 13)  # five were kept
    found = json.loads(Path("o.json").read_text())
    if kind == "rated":
        shares = Share().score([row["text"] for row in rows])["share"]
        expected = stats.pearsonr(shares, [row["rating"] for row in rows]).statistic
        (pair,) = found["correlations"]
        assert pair["pearson"]["value"] == pytest.approx(expected)
    else:
        assert found["share"]["subsets"]["all"]["higher"]["value"] == 0.0
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "o.json"]
