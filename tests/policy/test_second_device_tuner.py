"""A policy that learns on one device from scorers on another."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from module_files import load
from second_device import memory, on_second_device

SCRIPT = Path(__file__).with_name("second_device_runs.py")
runs = load(SCRIPT)

CLOCK = ("second", "wait", "share")  # metrics of time


@pytest.fixture
def folders(folder: str, tiny_llama: Callable[[str], str], pegasus: str) -> dict[str, str]:
    return {"policy": folder, "llama": tiny_llama("abcdef :"), "pegasus": pegasus}


@on_second_device
def test_learns_on_the_cpu_from_scorers_on_the_device(folders, tmp_path) -> None:
    expected, logged_there = runs.train(folders, tmp_path, "cpu")
    assert memory.peak == [0, 0]
    learned, logged = runs.train(folders, tmp_path, "second:0")
    assert memory.peak[0] > 10_000
    assert all(weight.device.type == "cpu" for weight in learned.values())
    check_equal(listed(learned), logged, listed(expected), logged_there)
    gc.collect()
    assert memory.live == [0, 0]  # freed at the end of the fit


def listed(weights: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: weight.flatten().tolist() for name, weight in weights.items()}


def check_equal(
    learned: dict[str, list[float]],
    logged: dict[str, float],
    expected: dict[str, list[float]],
    expected_logs: dict[str, float],
) -> None:
    assert max(abs(x) for n, ws in expected.items() if "lora_B" in n for x in ws) > 1e-3
    assert learned.keys() == expected.keys()
    for name, weights in expected.items():
        assert learned[name] == pytest.approx(weights, rel=1e-4, abs=1e-5), name
    assert {"reward/total", "score/held_out"} <= logged.keys()
    assert logged.keys() == expected_logs.keys()
    for name, value in expected_logs.items():
        if not any(word in name for word in CLOCK):
            assert logged[name] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True), name


@pytest.fixture(scope="module")
def trained(
    tiny_llama: Callable[[str], str],
    pegasus: str,
    tmp_path_factory: pytest.TempPathFactory,
    run_script: Callable[..., None],
) -> dict[str, Any]:
    """Trainings of one process, since torch fixes the devices of a backward pass at the first."""
    pytest.importorskip("torch", minversion="2.13", reason="devices in Python need torch 2.13")
    out = tmp_path_factory.mktemp("second_device")
    models = tiny_llama("abcdef"), tiny_llama("abcdef :"), pegasus
    run_script(SCRIPT, *models, out, timeout=240)
    found: dict[str, Any] = json.loads((out / "runs.json").read_text())
    return found


@pytest.mark.parametrize("scorers", ["cpu", "second:1"])
def test_learns_on_the_device_from_scorers_elsewhere(scorers: str, trained: dict[str, Any]) -> None:
    expected, logs, peak = trained["cpu cpu"]
    assert peak == [0, 0]
    learned, logged, peak = trained[f"second:0 {scorers}"]
    assert peak[0] > 10_000
    assert (peak[1] > 10_000) == (scorers == "second:1")
    check_equal(learned, logged, expected, logs)
