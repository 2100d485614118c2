"""Logs that other trainers' own classes wrote; tests/golden/README.md says which."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.logs import read_log

RECORDED = Path(__file__).parents[1] / "golden" / "run_logs"
STEPS = [10, 20, 30, 40, 50]
REWARDS = [0.2, 0.4, 0.6, 0.9, 0.95]


def curve(path: str | Path, key: str) -> dict[int, float]:
    return {step: row[key] for step, row in read_log(path).rows if key in row}


@pytest.mark.parametrize("name", ["verl", "verl/grpo.jsonl"])
def test_verl(name: str) -> None:
    assert read_log(RECORDED / name).source == "verl"
    rewards = curve(RECORDED / name, "val-core/gsm8k/reward/mean@4")
    assert rewards == dict(zip(STEPS, REWARDS, strict=True))
    # Steps 5, 15, … have no validation.
    assert len(curve(RECORDED / name, "actor/pg_loss")) == 10


def test_trainer_state_of_the_last_checkpoint(tmp_path: Path) -> None:
    for step in (9, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": s, "epoch": 0.5, "eval_loss": 1 / s} for s in (9, 100) if s <= step]
        state = json.dumps({"log_history": history})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert curve(tmp_path, "eval_loss") == {9: 1 / 9, 100: 0.01}


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    jsonl, csv = tmp_path / "a.jsonl", tmp_path / "a.csv"
    jsonl.write_text('{"step": 1, "a": 1}\n{"step": 2, "a')
    csv.write_text("step,a,b\n1,1,\n2,")
    assert curve(jsonl, "a") == curve(csv, "a") == {1: 1.0}


def starts(folder: Path, *logs: dict[int, float]) -> list[Path]:
    """Write the log of each start of a run into a folder of its own."""
    folders = [folder / f"version_{i}" for i in range(len(logs))]
    for place, log in zip(folders, logs, strict=True):
        place.mkdir(parents=True)
        rows = "".join(f"{step},{value}\n" for step, value in log.items())
        (place / "metrics.csv").write_text(f"step,a\n{rows}")
    return folders


def test_the_logs_of_a_resumed_run_are_joined(tmp_path: Path) -> None:
    """Killed at 30, resumed from 20, killed before a step, resumed from 40 after ten versions."""
    logs = [{10: 1.0, 20: 2.0, 30: 3.0}, {30: 3.5, 40: 4.0}, {}, {50: 5.0}]
    folders = starts(tmp_path / "logs", *logs)
    folders[3].rename(tmp_path / "logs" / "version_10")
    joined = {10: 1.0, 20: 2.0, 30: 3.5, 40: 4.0, 50: 5.0}
    for given in (tmp_path, tmp_path / "logs", tmp_path / "logs" / "version_10"):
        assert curve(given, "a") == joined
    assert curve(folders[1], "a") == {step: joined[step] for step in (10, 20, 30, 40)}
    assert curve(folders[1] / "metrics.csv", "a") == logs[1]  # this file alone
    parts = read_log(tmp_path).parts
    assert list(parts.values()) == [30, 50, float("inf")]


def test_a_resumed_run_keeps_the_scores_of_its_checkpoint(tmp_path: Path) -> None:
    """`LearningRateMonitor` logs at the checkpoint's step first: this validation was lost."""
    for version, rows in enumerate(("10,1,\n20,2,\n30,3,\n", "20,,0.1\n30,4,0.1\n")):
        folder = tmp_path / f"version_{version}"
        texts = folder / "samples" / "score"
        texts.mkdir(parents=True)
        (folder / "metrics.csv").write_text(f"step,score/a,lr\n{rows}")
        for step in (20, 30)[version:]:
            row = {"text": "b", "prefix": "", "scores": {"a": step + version}}
            (texts / f"step=0000{step}.jsonl").write_text(json.dumps(row) + "\n")
        rules = {"StopRule": {"monitor": "score/a", "patience": version}}
        (folder / "decisions.json").write_text(json.dumps({"rules": rules}))
    assert curve(tmp_path, "score/a") == {10: 1.0, 20: 2.0, 30: 4.0}
    for given in (tmp_path, tmp_path / "version_1"):
        run = read_stored_run(given)
        assert [each.metrics.get("score/a") for each in run.steps] == [1.0, 2.0, 4.0]
        files = {step: texts.file for step, texts in run.samples["score"].items()}
        assert {step: file.parts[-4] for step, file in files.items()} == {
            20: "version_0",
            30: "version_1",
        }
        assert run.rules["StopRule"]["patience"] == 1


def test_what_is_no_finite_number_is_nan(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step,a,b\n0,1,inf,\n0,2,nan,1.5\n")
    (first, second) = read_stored_run(tmp_path).steps
    assert math.isnan(first.metrics["a"])
    assert math.isnan(second.metrics["a"])
    assert (first.metrics.keys(), second.metrics["b"]) == ({"a"}, 1.5)


@pytest.mark.parametrize("content", ["[]", "3", '{"folders": ["x"], "rules": 1, "directions": []}'])
def test_a_stranger_s_decisions_are_no_rules(tmp_path: Path, content: str) -> None:
    starts(tmp_path, {1: 2.0})
    (tmp_path / "version_0" / "decisions.json").write_text(content)
    assert read_stored_run(tmp_path).rules == {}


def test_several_runs_are_named(tmp_path: Path) -> None:
    """Two seeds log at the same first step."""
    folders = starts(tmp_path / "logs", {1: 2.0}, {1: 3.0}, {2: 4.0})
    with pytest.raises(ValueError, match=r"2 runs.*version_0.*version_2"):
        read_log(tmp_path)
    assert curve(folders[2], "a") == {1: 3.0, 2: 4.0}


def test_links_and_texts_are_no_logs(tmp_path: Path) -> None:
    starts(tmp_path / "logs", {1: 2.0})
    (tmp_path / "logs" / "latest").symlink_to("version_0")
    for name in ("before.jsonl", "after.jsonl"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    assert curve(tmp_path, "a") == {1: 2.0}


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", b"", "a.jsonl"),
        ("a.jsonl", b'{"step": 1, "a": 1}\n{"step": 2,, }\n', "a.jsonl:2"),
        ("a.jsonl", b'{"step": "x", "a": 1}\n', "a.jsonl:1"),
        ("a.jsonl", b'{"step": 1, "a": "b"}\n', "a.jsonl"),
        ("a.csv", b"step,caf\xe9\n1,2\n", "a.csv:1"),
        ("a.csv", b"step,a\n1,high\n", "a.csv:2"),
        ("a.json", b'{"log_history": [{"los', "a.json:1"),
        ("a.json", b'{"log_history": [3]}', "row 1"),
        ("a.safetensors", b"\0", "a.safetensors"),
    ],
)
def test_damaged_empty_and_foreign_files(
    tmp_path: Path, name: str, content: bytes, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=place) as caught:
        read_log(tmp_path / name)
    assert "\n" not in str(caught.value)
