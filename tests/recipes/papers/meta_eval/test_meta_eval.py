"""`ctrlreward meta-eval`, with scores that are the lengths of the texts."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Interrupted
from scipy import stats

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.scorers import parts
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.tables.columns import number_column
from ctrlreward.tables.rows import read_rows

TESTS = Path(__file__).parents[3]


class Length(Scorer):
    """Length of a text instead of any score; an empty text fails."""

    def __init__(self, names: tuple[str, ...] = ("length",), sign: float = 1.0) -> None:
        self.names = names
        self.sign = sign

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {name: ScoreSpec(self.sign > 0, (-np.inf, np.inf)) for name in self.names}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        lengths = np.array([self.sign * len(text) or np.nan for text in samples.texts])
        return {name: lengths + position for position, name in enumerate(self.names)}


class Stub(Length):
    """Replaces CTRLEval or Alignment, and records its arguments."""

    built: list[tuple[Any, ...]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        Stub.built.append((*arguments, options))
        super().__init__(CTRLEVAL)


CTRLEVAL = ("coherence", "consistency", "attribute_relevance")


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with this module importable as `stubs`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "stubs", sys.modules[__name__])
    monkeypatch.setattr(Length, "__module__", "stubs")
    monkeypatch.setattr(Stub, "built", [], raising=False)


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
Mine = tuple[list[int], list[int], list[str]]  # lengths, ratings and systems
COMMAND = ["meta-eval", "rated", "--data=mine.jsonl", "--ratings=[good,short]"]
COMMAND += ["--columns.text=output", "--cluster=about", "--system=by"]


def write(file: str, rows: list[dict[str, Any]]) -> None:
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def mine() -> Mine:
    """Write the file; return lengths, ratings and systems of the rows that don't fail."""
    write("mine.jsonl", MINE)
    kept = [row for row in MINE if row["output"]]
    lengths = [len(str(row["output"])) for row in kept]
    return lengths, [int(row["good"]) for row in kept], [str(row["by"]) for row in kept]


def test_correlations_equal_those_of_scipy(mine: Mine, capsys: pytest.CaptureFixture[str]) -> None:
    main([*COMMAND, "--scorers+=stubs.Length", "--output=out/found.json"])
    printed = capsys.readouterr().out
    lengths, good, systems = mine
    rows = rows_of("out/found.json")
    assert len(rows) == 4
    sample = rows["length", "good", "sample"]
    assert (sample["n"], sample["failed"]) == (11, 1)
    measures = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    by = np.array(systems)
    means = [[np.array(side)[by == s].mean() for s in "abc"] for side in (lengths, good)]
    for name, measure in measures.items():
        value = measure(lengths, good).statistic
        assert sample[name]["value"] == pytest.approx(value)
        assert sample[name]["low"] <= value <= sample[name]["high"]
        assert f"{value:.4f}" in printed
        assert f"{sample[name]['low']:.2f} to {sample[name]['high']:.2f}" in printed
        assert rows["length", "short", "sample"][name]["value"] == pytest.approx(-value)
        between = rows["length", "good", "system"][name]["value"]
        assert between == pytest.approx(measure(*means).statistic)
    assert "length ↑" in printed
    assert "bootstrap over the 4 clusters of rows" in printed


def test_written_scores_can_be_evaluated_again(mine: Mine) -> None:
    main([*COMMAND, "--scorers+=stubs.Length", "--scores=rows.csv", "--output=first.json"])
    rows = read_rows(Path("rows.csv"))
    assert number_column(rows, "score/length").tolist()[:9] == LENGTHS[:9]
    assert np.isnan(number_column(rows, "score/length")[9])
    again = ["--ratings=[rating/good]", "--metrics=[score/length]", "--output=second.json"]
    main(["meta-eval", "rated", "--data=rows.csv", *again])
    first = rows_of("first.json")["length", "good", "sample"]
    second = rows_of("second.json")["score/length", "rating/good", "sample"]
    assert second["kendall"]["value"] == pytest.approx(first["kendall"]["value"])


def test_scores_are_kept_when_the_statistics_fail(
    mine: Mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no statistics")

    monkeypatch.setattr("ctrlreward.recipes.papers.meta_eval.rated_report.correlate_all", broken)
    with pytest.raises(RuntimeError, match="no statistics"):
        main([*COMMAND, "--scorers+=stubs.Length", "--scores=rows.jsonl"])
    assert len(read_rows(Path("rows.jsonl"))) == len(MINE)


def test_existing_metrics_need_no_texts(fails: Callable[..., str]) -> None:
    Path("mine.csv").write_text("m,good\n1,2\n2,1\n3,5\n5,6\n")
    command = ["rated", "--data=mine.csv", "--ratings=[good]", "--metrics=[m]"]
    main(["meta-eval", *command, "--output=found.json"])
    row = rows_of("found.json")["m", "good", "sample"]
    assert row["kendall"]["value"] == pytest.approx(stats.kendalltau([1, 2, 3, 5], [2, 1, 5, 6])[0])
    error = fails(*command, "--scores=rows.csv")
    assert "--scores needs --scorers: the file already has its --metrics" in error


@pytest.mark.parametrize("nothing", [None, "", "absent"])
def test_rows_without_a_system_are_left_out_and_without_a_cluster_raise(
    nothing: str | None, fails: Callable[..., str]
) -> None:
    rows: list[dict[str, Any]] = [dict(row, by="abcd"[i % 4]) for i, row in enumerate(MINE)]
    for row in rows[3::4]:
        row |= {"by": nothing}
        if nothing == "absent":
            del row["by"]
    write("mine.jsonl", rows)
    main([*COMMAND, "--scorers+=stubs.Length", "--output=found.json"])
    assert rows_of("found.json")["length", "good", "system"]["n"] == 3
    error = fails(*COMMAND[1:5], "--scorers+=stubs.Length", "--cluster=by")
    assert "by[3] is empty, must be the cluster of the row" in error


def test_a_score_that_always_fails_has_a_note(
    mine: Mine, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*COMMAND, "--scorers+=stubs.Length", "--scorers.sign=0", "--output=found.json"])
    row = rows_of("found.json")["length", "good", "sample"]
    assert row["kendall"] == {"value": None, "low": None, "high": None}
    assert row["note"] == "0 rows: a correlation takes 3 or more"
    assert "a correlation takes 3 or more" in " ".join(capsys.readouterr().out.split())


# Published formats, on small files


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ctrleval.rated_ctrleval.CTRLEval", "ctc.rated_ctc.Alignment"):
        monkeypatch.setattr(f"ctrlreward.recipes.papers.{name}", Stub)


def test_ctrleval(stubbed: None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("world", "The sea", f"The sea {'rose' * i}", i % 3, i, 4 - i % 2) for i in range(5)]
    Path("topic.txt").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    options = ["--task=topic", "--model=some", "--batch-tokens=64", "--output=found.json"]
    main(["meta-eval", "ctrleval", "--data=topic.txt", *options])
    assert Stub.built == [("some", "topic", {"iwf": None, "batch_tokens": 64})]
    rows = rows_of("found.json")
    assert set(rows) == {(a, b, "sample") for a in CTRLEVAL for b in CTRLEVAL}
    assert rows["coherence", "consistency", "sample"]["kendall"]["value"] == pytest.approx(1)
    assert not any(row["published"] for row in rows.values())
    assert "No system level" in capsys.readouterr().out


def test_published_values_are_shown(
    data_dir: Path, stubbed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_dir / "ctrleval" / "data_senti.txt"
    main(["meta-eval", "ctrleval", f"--data={data}", "--output=found.json", "--resamples=50"])
    printed = capsys.readouterr().out
    with open(data, encoding="utf-8") as file:
        cells = [line.rstrip("\n").split("\t") for line in file]
    lengths = [len(row[2]) for row in cells]
    for position, (aspect, paper) in enumerate(
        zip(CTRLEVAL, (0.3044, 0.2235, 0.2111), strict=True), 3
    ):
        row = rows_of("found.json")[aspect, aspect, "sample"]
        tau = stats.kendalltau(lengths, [float(row[position]) for row in cells]).statistic
        assert row["kendall"]["value"] == pytest.approx(tau)
        figures = {(f["model"], f["statistic"]): f["value"] for f in row["published"]}
        assert figures["CTRLEval PEGASUS-568M", "kendall"] == paper
        assert f"{tau:.4f}" in printed
        assert f"{paper:.4f}" in printed
    assert "bootstrap over the 15 clusters of rows" in printed


@pytest.mark.parametrize("kind", ["rated", "preferences"])
def test_a_killed_command_continues(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.setattr(parts, "MOST", 2)
    Interrupted.calls.clear()
    rows = [{"text": f"{i} text" * (i + 1), "rating": i % 3} for i in range(9)]
    if kind == "preferences":
        rows = [{"chosen": row["text"], "rejected": f"{row['text']}."} for row in rows]
    last = next(iter(rows[6].values()))
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["meta-eval", kind, "in.jsonl", "--scorers+=fakes.Interrupted", "--output", "o.json"]
    command += ["--ratings", "rating"] if kind == "rated" else []
    monkeypatch.setenv("KILL_AT", str(last))
    process = multiprocessing.get_context("fork").Process(target=main, args=(command,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    monkeypatch.delenv("KILL_AT")
    main(command)
    assert sum(Interrupted.calls) == (4 if kind == "rated" else 13)  # five were kept
    found = json.loads(Path("o.json").read_text())
    if kind == "rated":
        lengths = [len(row["text"]) for row in rows]
        expected = stats.pearsonr(lengths, [row["rating"] for row in rows]).statistic
        (pair,) = found["correlations"]
        assert pair["pearson"]["value"] == pytest.approx(expected)
    else:
        assert found["length"]["subsets"]["all"]["higher"]["value"] == 0.0
    assert sorted(path.name for path in Path().iterdir()) == ["in.jsonl", "o.json"]
