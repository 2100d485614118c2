"""`make gpu` on the second device, with tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

KIT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def test_runs_without_a_card(run_script: Callable[..., None], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", minversion="2.13", reason="devices in Python need it")
    if torch.cuda.is_available():
        pytest.skip("the kit would measure the card")
    run_script(KIT, "--output", tmp_path, "--scorers", "Similarity", "Judge", timeout=400)
    record = json.loads((tmp_path / "gpu.json").read_text())
    rows = {(row["part"], row["case"]): row for row in record["rows"]}
    assert len(rows) == 2 + 3 + 2 + 2
    assert not [row for row in record["rows"] if row.get("passed") is False]
    for case in ("Judge", "Similarity"):
        row = rows["scorers", case]
        assert row["difference, float32"] < 1e-6 < row["difference, bfloat16"]
        assert row["MiB held, float32"] > row["MiB left, float32"] == 0
        assert rows["speed", case]["texts per second"] > 0
    assert [row["times out of memory"] for (part, _), row in rows.items() if part == "memory"] == (
        [1, 1, 1]
    )
    ours = rows["steps", "PolicyTuner, llama"]
    assert 0 < ours["sampling, s"] < ours["step, s"]
