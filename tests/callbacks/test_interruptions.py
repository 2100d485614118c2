"""Interrupted and resumed runs in real processes, started once for all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ctrlreward.files import JsonLog

RUNS = [f"{how}-{overlap}" for how in ("raise", "sigterm", "sigkill") for overlap in (False, True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_script) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    run_script(Path(__file__).with_name("interrupted_runs.py"), folder, timeout=240)
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, dict[str, Any]]:
    return json.loads((folder / "ended.json").read_text())


@pytest.mark.parametrize("run", RUNS)
def test_the_process_ends_soon_with_the_right_status(run: str, folder: Path, ended) -> None:
    how = run.split("-")[0]
    # Lightning's SIGTERMException is a SystemExit without a code: status 0.
    assert ended[run]["code"] == {"raise": 1, "sigterm": 0, "sigkill": -9}[how]
    assert ended[run]["seconds"] < 25
    if how != "sigkill":
        seen = json.loads((folder / run / "seen.json").read_text())
        expected = {"raise": "ValueError: the loss is gone", "sigterm": "SIGTERMException: "}
        assert seen["raised"] == expected[how]
        assert [name for name in seen["threads"] if name.startswith("ctrlreward")] == []


@pytest.mark.parametrize("run", RUNS)
def test_no_checkpoint_is_truncated(run: str, ended) -> None:
    """A run killed while writing the third `last.ckpt` still has the second."""
    last, *best = ended[run]["whole"]
    assert (last, best) == {
        "raise": (4, [2, 4]),
        "sigterm": (6, [4, 6]),  # the current batch and the validation after it are finished
        "sigkill": (4, [4, 6]),
    }[run.split("-")[0]]
    unfinished = [name for name in ended[run]["files"] if name.startswith(".")]
    assert unfinished == ([".last.ckpt.unfinished"] if run.startswith("sigkill") else [])


@pytest.mark.parametrize("run", RUNS)
def test_rows_up_to_the_interruption_are_on_disk(run: str, ended) -> None:
    rows = [json.loads(row) for row in ended[run]["rows"]]
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, 6 if run.startswith("raise") else 7))


@pytest.mark.parametrize("run", [run for run in RUNS if not run.startswith("sigkill")])
def test_texts_being_scored_are_written_before_the_process_ends(run: str, ended) -> None:
    steps = (2, 4) if run.startswith("raise") else (2, 4, 6)
    assert ended[run]["texts"] == [f"step={step:06d}.jsonl" for step in steps]


@pytest.mark.parametrize("run", RUNS)
def test_a_resumed_run_neither_loses_nor_repeats_a_row(run: str, folder: Path) -> None:
    whole = folder / f"whole-{run.split('-')[1]}"
    assert JsonLog(folder / run / "metrics.jsonl").read() == JsonLog(whole / "metrics.jsonl").read()
    assert len(JsonLog(whole / "metrics.jsonl").read()) > 8
    kept = folder / run / "kept"
    for path in (whole / "kept").glob("*.ckpt"):
        weight = torch.load(path, weights_only=True)["state_dict"]["weight"]
        assert torch.load(kept / path.name, weights_only=True)["state_dict"]["weight"] == weight
    for path in (whole / "samples" / "score").iterdir():
        assert (folder / run / "samples" / "score" / path.name).read_text() == path.read_text()
    assert [path.name for path in kept.iterdir() if path.name.startswith(".")] == []
