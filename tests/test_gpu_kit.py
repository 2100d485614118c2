"""`make gpu` on the second device, with tiny models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import gpu

    return gpu


def test_runs_without_a_card(run_script: Callable[..., None], tmp_path: Path) -> None:
    pytest.importorskip("torch", minversion="2.13", reason="devices in Python need torch 2.13")
    arguments = ("--device", "second:0", "--size", "tiny", "--output", tmp_path)
    parts = ("--parts", "scorers", "memory", "steps", "--scorers", "Similarity", "Judge")
    run_script(BENCHMARKS / "gpu.py", *arguments, *parts, timeout=240)
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["card"] is None
    found = record["parts"]
    assert {name: part["status"] for name, part in found.items()} == dict.fromkeys(
        ("scorers", "memory", "steps"), "passed"
    )
    judge, similarity = found["scorers"]["rows"]
    assert (judge["case"], similarity["case"]) == ("Judge", "Similarity")
    for row in (judge, similarity):
        assert row["difference, float32"] < 1e-6 < row["difference, bfloat16"]
        assert row["MiB held, float32"] > row["MiB left, float32"] == 0
    assert [row["times out of memory"] for row in found["memory"]["rows"]] == [1, 1, 1]
    ours, _, theirs = found["steps"]["rows"]
    assert 0 < ours["sampling, s"] < ours["step, s"]
    assert theirs["not run"] == "TRL does not train on second:0"
    table = (tmp_path / "gpu.md").read_text()
    assert "| Similarity |" in table
    assert "No card: second:0" in table
