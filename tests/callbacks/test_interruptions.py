"""Runs that are interrupted in real processes, and resumed, once for all tests."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from module_files import load
from warm_python import WarmProcess

from ctrlreward.files import JsonLog

SCRIPT = Path(__file__).with_name("interrupted_runs.py")
interrupted_runs = load(SCRIPT)
RUNS = ("raise", "sigterm", "sigkill")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    interrupted_runs.fit(folder / "whole")
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, dict[str, Any]]:
    """Files that each interrupted run leaves; then it is resumed."""
    found = {}
    for how in RUNS:
        place = folder / how
        place.mkdir()
        errors = place / "errors"
        process = WarmProcess([SCRIPT, how, place], place / "output", errors)
        if how == "sigterm":
            while not (place / "ready").exists():
                assert process.wait(0.02) is None, errors.read_text()
            process.end(signal.SIGTERM)
        code = process.wait(interrupted_runs.LIMIT)
        process.end(signal.SIGKILL)
        kept = place / "kept"
        found[how] = {
            "code": code,
            "files": [path.name for path in kept.iterdir()],
            "whole": [weight_of(path) for path in sorted(kept.glob("*.ckpt"))],
            "rows": (place / "metrics.jsonl").read_text().splitlines(),
            "texts": sorted(path.name for path in (place / "samples" / "score").iterdir()),
        }
        interrupted_runs.fit(place, ckpt_path="last")
    return found


def weight_of(path: Path) -> float:
    """Return the weight in a checkpoint, and compare it with the exported adapter."""
    weight = torch.load(path, weights_only=True)["state_dict"]["weight"].item()
    adapter = path.with_name(f"{path.stem}-adapter") / "weight"
    assert path.name == "last.ckpt" or float(adapter.read_text()) == weight
    return float(weight)


@pytest.mark.parametrize("run", RUNS)
def test_the_process_ends_with_the_right_status(run: str, folder: Path, ended) -> None:
    # Lightning's SIGTERMException is a SystemExit without a code: status 0.
    assert ended[run]["code"] == {"raise": 1, "sigterm": 0, "sigkill": -9}[run]
    if run != "sigkill":
        seen = json.loads((folder / run / "seen.json").read_text())
        expected = {"raise": "ValueError: the loss is gone", "sigterm": "SIGTERMException: "}
        assert seen["raised"] == expected[run]
        assert [name for name in seen["threads"] if name.startswith("ctrlreward")] == []


@pytest.mark.parametrize("run", RUNS)
def test_no_checkpoint_is_truncated(run: str, ended) -> None:
    """A run killed while writing the third `last.ckpt` still has the second."""
    last, *best = ended[run]["whole"]
    assert (last, best) == {
        "raise": (4, [2, 4]),
        "sigterm": (6, [4, 6]),  # the current batch and the validation after it are finished
        "sigkill": (4, [4, 6]),
    }[run]
    unfinished = [name for name in ended[run]["files"] if name.startswith(".")]
    assert unfinished == ([".last.ckpt.unfinished"] if run == "sigkill" else [])


@pytest.mark.parametrize("run", RUNS)
def test_rows_up_to_the_interruption_are_on_disk(run: str, ended) -> None:
    rows = [json.loads(row) for row in ended[run]["rows"]]
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, 6 if run == "raise" else 7))


@pytest.mark.parametrize("run", ["raise", "sigterm"])
def test_texts_being_scored_are_written_before_the_process_ends(run: str, ended) -> None:
    steps = (2, 4) if run == "raise" else (2, 4, 6)
    assert ended[run]["texts"] == [f"step={step:06d}.jsonl" for step in steps]


@pytest.mark.parametrize("run", RUNS)
def test_a_resumed_run_neither_loses_nor_repeats_a_row(run: str, folder: Path, ended) -> None:
    whole = folder / "whole"
    assert JsonLog(folder / run / "metrics.jsonl").read() == JsonLog(whole / "metrics.jsonl").read()
    assert len(JsonLog(whole / "metrics.jsonl").read()) > 8
    kept = folder / run / "kept"
    for path in (whole / "kept").glob("*.ckpt"):
        weight = torch.load(path, weights_only=True)["state_dict"]["weight"]
        assert torch.load(kept / path.name, weights_only=True)["state_dict"]["weight"] == weight
    for path in (whole / "samples" / "score").iterdir():
        assert (folder / run / "samples" / "score" / path.name).read_text() == path.read_text()
    assert [path.name for path in kept.iterdir() if path.name.startswith(".")] == []
