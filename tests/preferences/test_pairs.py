"""`ctrlreward pairs`: files as TRL reads them, whole or not at all, by a run that resumes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctrlreward.cli import main
from ctrlreward.tables.row_streams import read_rows

REWARD = f"{__name__}:brevity"
calls: list[list[str]] = []
broken = {"crash": True}


def length(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


def brevity(texts: Sequence[str]) -> list[float | None]:
    calls.append(list(texts))
    if any(broken.get(text) for text in texts):
        raise RuntimeError("the machine has lost its power")
    return [None if "x" in text else -float(len(text)) for text in texts]


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


COMPLETIONS = rows(
    prefix=["The soup"] * 4 + ["The view"] * 2 + ["A dog"] * 2,
    text=[
        *("The soup was good.", "The soup was.", "The soup was x.", "The soup was."),
        *("The view ok", "The view no", "A dog", "A dog ran"),
    ],
)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls.clear()


def write(content: list[dict[str, Any]], name: str = "in.jsonl") -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in content))


def run(*options: str, reward: str | None = REWARD) -> list[dict[str, Any]]:
    given = ["--reward", reward] if reward else []
    main(["pairs", "in.jsonl", "out.jsonl", *given, *options])
    return read_rows(Path("out.jsonl")) if Path("out.jsonl").read_text() else []


def fails(capsys: pytest.CaptureFixture[str], *options: str, reward: str | None = REWARD) -> str:
    with pytest.raises(SystemExit) as ended:
        run(*options, reward=reward)
    assert ended.value.code == 2
    assert not Path("out.jsonl").exists()
    return capsys.readouterr().err


def test_pairs_and_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    write(COMPLETIONS)
    assert run() == [
        {
            "prompt": "The soup",
            "chosen": " was.",
            "rejected": " was good.",
            "chosen_reward": -13.0,
            "rejected_reward": -18.0,
            "margin": 5.0,
        }
    ]
    assert capsys.readouterr().out.splitlines() == [
        "out.jsonl: 1 pair of 3 prompts, mean margin 5",
        "left out: 2 completions without a reward",  # one is empty
        "left out: 1 repeated completions",
        "left out: 1 pairs within the margin",
        "left out: 1 prompts with fewer than two completions to compare",
    ]
    names = {path.name for path in Path().iterdir()}
    assert names == {"in.jsonl", "out.jsonl"}
    Path("out.jsonl").unlink()
    assert run("--margin", "5") == []


def test_prompts_of_the_model_and_of_chats() -> None:
    write([{**row, "prompt": f"A short text: {row['prefix']}"} for row in COMPLETIONS])
    (pair,) = run()
    assert pair["prompt"] + pair["chosen"] == "A short text: The soup was."
    Path("out.jsonl").unlink()
    write(rows(prompt=["Name a soup."] * 2, text=["Leek soup. ", "Leek."]))
    (pair,) = run("--chat")
    assert pair["prompt"] == [{"role": "user", "content": "Name a soup."}]
    assert pair["chosen"] == [{"role": "assistant", "content": "Leek."}]
    assert pair["rejected"] == [{"role": "assistant", "content": "Leek soup."}]


def test_a_column_in_place_of_a_reward(capsys: pytest.CaptureFixture[str]) -> None:
    write(rows(prompt=["p"] * 5, answer=[*"abcde"], rating=[3, None, 5, 1, 4]))
    options = ["--columns.text", "answer", "--score", "rating", "--per-prompt", "2"]
    pairs = run(*options, reward=None)
    assert [(p["chosen"], p["rejected"], p["margin"]) for p in pairs] == [
        ("c", "d", 4.0),
        ("e", "a", 1.0),
    ]
    assert "left out: 1 completions without a reward" in capsys.readouterr().out


def test_a_crash_loses_no_reward(capsys, monkeypatch) -> None:
    monkeypatch.setattr("ctrlreward.preferences.pairs._CHUNK", 2)
    content = rows(prompt=[*"pqpqrr"], text=["a", "b", "aa", "bb", "c", "crash"])
    write(content)
    with pytest.raises(RuntimeError, match="lost its power"):
        run()
    assert not Path("out.jsonl").exists()
    assert calls == [["a", "aa"], ["b", "bb"], ["c", "crash"]]
    assert "was started with other settings: reward" in fails(capsys, reward=f"{__name__}:length")
    write([*content[:-1], {"prompt": "r", "text": "other"}])
    assert "was started with other settings: texts" in fails(capsys)
    write(content)
    calls.clear()
    monkeypatch.setitem(broken, "crash", False)
    assert [pair["chosen"] for pair in run()] == ["a", "b", "c"]
    assert calls == [["c", "crash"]]
    assert not Path("out.jsonl.partial.jsonl").exists()


def test_one_prompt_with_two_targets_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write(rows(prompt=["p", "p"], text=["a", "bb"], label=["glad", "sad"]))
    assert (
        "in.jsonl:2: label = 'sad', but 'glad' at in.jsonl:1 for the same prompt, 'p'. State the "
        "label in the prompt, or ignore the column with --columns.label=null"
    ) in fails(capsys)
    assert len(run("--columns.label=null")) == 1


P_AND_A = {"prompt": ["p"], "text": ["a"]}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (rows(text=["a", "b"]), [], "has no column 'prompt' or 'prefix', which the pairs need"),
        (COMPLETIONS, ["--score=rating"], "must come from --reward or from --score, one of"),
        (rows(prompt=["a", "a"], text=["ab", "ac"]), [], "add --columns.prefix=PROMPT"),
        (COMPLETIONS, ["--margin=-1"], "margin must be 0 or more, got -1"),
        (COMPLETIONS, ["--per_promt=2"], "did you mean --per_prompt"),
        (rows(**P_AND_A), None, "No such column: 'rating'. The columns are prompt, text"),
        (
            rows(**P_AND_A, rating=["good"]),
            None,
            "in.jsonl:1: rating must be a number or an empty cell, got 'good'",
        ),
    ],
)
def test_wrong_input(content, options, message, capsys) -> None:
    write(content)
    if options is None:
        assert message in fails(capsys, "--score=rating", reward=None)
    else:
        assert message in fails(capsys, *options)


def test_an_existing_output_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    write(COMPLETIONS)
    run()
    with pytest.raises(SystemExit):
        run("--margin", "9")
    assert "out.jsonl exists. Delete it, or use another file" in capsys.readouterr().err
    assert len(read_rows(Path("out.jsonl"))) == 1
