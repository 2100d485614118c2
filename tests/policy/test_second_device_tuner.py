"""A policy that learns on one device from scorers on another, as it learns on the CPU alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("second_device_runs.py")
CLOCK = ("second", "wait", "share")  # metrics of time


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


@pytest.mark.parametrize(("policy", "scorers"), [("cpu", "second:0"), ("second:0", "second:1")])
def test_it_learns_the_same(policy: str, scorers: str, trained: dict[str, Any]) -> None:
    expected, expected_logs, *memory = trained["cpu cpu"]
    assert memory == [[0, 0], [0, 0]]
    assert max(abs(x) for n, ws in expected.items() if "lora_B" in n for x in ws) > 1e-3
    learned, logged, peak, left = trained[f"{policy} {scorers}"]
    used = [f"second:{i}" in (policy, scorers) for i in range(2)]
    assert [most > 10_000 for most in peak] == used
    assert policy != "cpu" or left == [0, 0]  # freed at the end of the fit
    assert learned.keys() == expected.keys()
    for name, weights in expected.items():
        assert learned[name] == pytest.approx(weights, rel=1e-4, abs=1e-5), name
    assert {"reward/total", "score/held_out"} <= logged.keys()
    assert logged.keys() == expected_logs.keys()
    for name, value in expected_logs.items():
        if not any(word in name for word in CLOCK):
            assert logged[name] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True), name
