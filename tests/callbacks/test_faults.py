"""Faults around a run: checkpoints that are cut off, ranks that die, full disks."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from lightning_choice import HistoryLogger, RewardCheckpoint, WandbLogger
from warm_python import WarmProcess

SCRIPT = Path(__file__).with_name("fault_runs.py")


@pytest.fixture
def callbacks(watch) -> Callable[[Path], list[Any]]:
    """Function that builds a scorer and a checkpoint callback."""

    def build(folder: Path) -> list[Any]:
        keeper = RewardCheckpoint("score/v", "max", dirpath=str(folder / "kept"))
        return [watch([0.125 * i for i in range(9)]), keeper]

    return build


@pytest.mark.parametrize("keep", [0.5, 0.99, 0.0])
def test_a_checkpoint_that_was_cut_off_is_named(
    keep: float, fit, counter, callbacks, tmp_path: Path
) -> None:
    fit(counter(), callbacks(tmp_path), max_steps=2)
    last, best = tmp_path / "kept" / "last.ckpt", tmp_path / "kept" / "step=000002-v=0.250.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(Exception) as raised:  # noqa: PT011 — EOFError, OSError or RuntimeError
        fit(counter(), callbacks(tmp_path), ckpt_path="last", max_steps=4)
    (note,) = raised.value.__notes__
    assert str(last) in note
    assert best.name in note
    trainer = fit(counter(), callbacks(tmp_path), ckpt_path=best, max_steps=4)
    assert trainer.global_step == 4


# Ranks that die


@pytest.mark.parametrize(
    ("fault", "rank"), [("kill the other rank", 0), ("kill the scoring rank", 1)]
)
def test_a_rank_ends_soon_after_the_other_has_died(fault: str, rank: int, tmp_path: Path) -> None:
    process = WarmProcess([SCRIPT, fault, tmp_path], tmp_path / "output", tmp_path / "errors")
    assert process.wait(200) == 1  # the ranks' own limit is half an hour
    said = (tmp_path / f"rank{rank}").read_text()
    assert re.search("Connection (closed|reset) by peer", said), said
    last = torch.load(tmp_path / "kept" / "last.ckpt", weights_only=True)
    assert last["global_step"] == (4 if rank == 0 else 2)


# Full disks

SAMPLES = "samples/score/step=000002.jsonl"


@pytest.mark.parametrize(
    ("size", "file", "kept"),
    [
        (100, "decisions.json", []),
        (400, SAMPLES, ["decisions.json"]),
        (1000, "kept/step=000002-v=0.250.ckpt", ["decisions.json", "metrics.jsonl", SAMPLES]),
    ],
)
def test_a_full_disk_is_named_and_the_run_goes_on_from_there(
    size: int, file: str, kept: list[str], fit, counter, callbacks, tmp_path: Path
) -> None:
    def run() -> None:
        options = {"val_check_interval": 2, "max_steps": 4}
        fit(counter(), callbacks(tmp_path), logger=HistoryLogger(str(tmp_path)), **options)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.filename == str(tmp_path / file)
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(found) == kept
    run()
    rows = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4]


# What the machine does to a run


def test_weights_and_biases_without_a_key(fit, counter, callbacks, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    module = counter()
    logger = WandbLogger(save_dir=str(tmp_path), project="faults")
    with pytest.raises(wandb.errors.UsageError) as raised:
        fit(module, callbacks(tmp_path), logger=logger)
    assert "WANDB_MODE" in raised.value.__notes__[0]
    wandb.teardown()  # its settings, made of this environment, would be those of later tests
    assert module.calls == []  # before anything is computed
