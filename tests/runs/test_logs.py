"""Logs that other trainers' own classes wrote; tests/golden/record_run_logs.py says how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

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


def test_tensorboard() -> None:
    pytest.importorskip("tensorboard")
    rewards = curve(RECORDED / "tensorboard", "eval/eval_gsm8k_reward")
    assert rewards == pytest.approx(dict(zip(STEPS, REWARDS, strict=True)))


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


def test_rows_of_another_callback_in_wandb_have_the_step_before(tmp_path: Path) -> None:
    rows = [
        {"_step": 0, "a": 1},
        {"_step": 1, "train/global_step": 50, "b": 1},
        {"_step": 2, "a": 2},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert curve(path, "a") == {0: 1.0, 50: 2.0}


def test_several_logs_are_named(tmp_path: Path) -> None:
    for version in ("version_0", "version_1"):
        (tmp_path / "logs" / version).mkdir(parents=True)
        (tmp_path / "logs" / version / "metrics.csv").write_text("step,a\n1,2\n")
    with pytest.raises(ValueError, match=r"has 2 logs, choose one of them: .*version_0.*resumed"):
        read_log(tmp_path)
    shutil.rmtree(tmp_path / "logs" / "version_1")
    (tmp_path / "logs" / "latest").symlink_to("version_0")
    for name in ("before.jsonl", "after.jsonl"):  # texts
        (tmp_path / name).write_text('{"text": "a"}\n')
    assert curve(tmp_path, "a") == {1: 2.0}


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.jsonl", b"", "a.jsonl"),
        ("a.jsonl", b'{"step": 1, "a": 1}\n{"step": 2,, }\n', "a.jsonl:2"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1"),
        ("a.jsonl", b'{"step": "x", "a": 1}\n', "row 1"),
        ("a.jsonl", b'{"step": 1, "a": "b"}\n', "a.jsonl"),
        ("a.csv", b"step,caf\xe9\n1,2\n", "a.csv:1"),
        ("a.csv", b"step,a\n1,high\n", "a.csv:2"),
        ("a.json", b'{"a": 1}', "a.json"),
        ("a.json", b'{"log_history": [{"los', "a.json:1"),
        ("a.json", b'{"log_history": [3]}', "row 1"),
        ("a.log", b"Hello\n", "a.log"),
        ("a.wandb", b"hello" * 50, "a.wandb"),
        ("a.safetensors", b"\0", "a.safetensors"),
        ("events.out.tfevents.1", b"nothing of the kind, but long enough", "tfevents"),
    ],
)
def test_damaged_empty_and_foreign_files(
    tmp_path: Path, name: str, content: bytes, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=place) as caught:
        read_log(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_the_folder_of_wandb_has_logs_of_its_own(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "offline-run-1"
    (run / "logs").mkdir(parents=True)
    for name in ("debug.log", "debug-internal.log"):
        (run / "logs" / name).write_text("step:1 - a:1\n")
        (tmp_path / "wandb" / name).symlink_to(run / "logs" / name)
    (run / "run-1.wandb").write_bytes(b":W&B" + bytes(3))
    with pytest.raises(ValueError, match=r"run-1\.wandb has no logged numbers"):
        read_log(tmp_path)
