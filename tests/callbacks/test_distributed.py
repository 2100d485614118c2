"""Runs of two processes on the CPU, started once for all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from module_files import load
from wandb_runs import read_runs

SCRIPT = Path(__file__).with_name("two_ranks.py")
two_ranks = load(SCRIPT)

# Under both packages in `make soak` (test_other_lightning.py).


@pytest.fixture(scope="module")
def seen(run_ranks) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT)


@pytest.mark.parametrize(
    ("part", "rank", "error"),
    [("scorer", 0, "ValueError: no scores"), ("generator", 1, "RuntimeError: no words")],
)
def test_a_failing_part_ends_all_ranks(seen, part: str, rank: int, error: str) -> None:
    assert seen[rank][part]["error"] == error
    assert seen[1 - rank][part]["error"] == f"RuntimeError: rank {rank} failed with {error}"


def tree(folder: Path) -> list[str]:
    """Return the checkpoints and adapters of a run."""
    places = [*folder.glob("kept/**/*"), *folder.glob("front/**/*")]
    return sorted(str(path.relative_to(folder)) for path in places)


def test_two_ranks_decide_log_and_write_the_same_as_one(module_folder, seen, tmp_path) -> None:
    """Of seven prompts the ranks get four and three; the duplicate is scored once.

    Rank 0 decides, even on a metric that each rank logs for itself, or that it logs alone.
    """
    single = json.loads(json.dumps(two_ranks.run(tmp_path, 1)))
    both = module_folder / "whole"
    assert single["error"] == ""
    assert single["stop"]["stopped_step"] == 4
    assert single["best"][:11] == "step=000002"
    assert [[*single["front"][name]] for name in ("kept", "pruned")] == [["1", "2"], ["3", "4"]]
    rows = [f"t{i}" for i in range(5) for _ in range(2)]
    assert [call[0] for call in single["asked"] if call[0][0] == "t0"] == [rows] * 2
    shares = [["t0", "t0", "t2", "t2", "t4", "t4"], ["t1", "t1", "t3", "t3"]]

    def shared(metrics: dict[str, float]) -> dict[str, float]:
        return {key: value for key, value in metrics.items() if key not in ("uneven", "alone")}

    for rank, share in zip((rank["whole"] for rank in seen), shares, strict=True):
        assert shared(rank["metrics"]) == shared(single["metrics"])
        for key in ("error", "stop", "best", "front"):
            assert rank[key] == single[key]
        tested = [call for call in rank["asked"] if call[0][0] == share[0]]
        assert tested == [[share, False, False]] * 2  # before, after
        assert rank["modes"] == single["modes"] == [True, False]
    first, second = (rank["whole"] for rank in seen)
    assert first["scored"] == single["scored"]
    assert second["scored"] == []
    draws = zip(first["drawn"], second["drawn"], strict=True)
    assert all(one != other for one, other in draws)
    assert tree(both) == tree(tmp_path)  # adapters are of rank 0
    assert len(tree(both)) == 12
    logs = [next(folder.rglob("samples")).parent for folder in (both, tmp_path)]
    for name in ("before", "after"):
        assert (both / f"{name}.jsonl").read_text() == (tmp_path / f"{name}.jsonl").read_text()
        assert len((both / f"{name}.jsonl").read_text().splitlines()) == 10
    for step in (1, 2, 3, 4):
        written = [log / "samples" / "score" / f"step={step:06d}.jsonl" for log in logs]
        assert written[0].read_text() == written[1].read_text()
        assert len(written[1].read_text().splitlines()) == 7
    summaries = [json.loads((at / "summary.json").read_text()) for at in (both, tmp_path)]
    for key in ("before", "after", "difference", "difference_ci95", "steps"):
        assert summaries[0][key] == summaries[1][key]
    curves = [run.curve("score/scored_step", "score/v") for run in read_runs(both)]
    assert [[*each] for each in curves] == [[1, 2, 3, 4]]  # of rank 0 alone


def test_all_ranks_share_the_multipliers_of_ranges(seen) -> None:
    integral, values = 0.0, []
    for i in range(3):
        step = [0.0, 1.0, 2.0 + i, 50.0 + i]
        values += step
        excess = (np.mean(step) - 5.0) / np.std(values)
        integral += 0.5 * excess
    expected = {"v_high": pytest.approx(integral + excess)}
    assert seen[0]["ranged"]["ranges"]["multipliers"] == expected
    assert seen[1]["ranged"] == seen[0]["ranged"]
