"""Runs of two processes on the CPU, started once for all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from module_files import load
from wandb_runs import read_runs

from ctrlreward import Samples

SCRIPT = Path(__file__).with_name("two_ranks.py")
two_ranks = load(SCRIPT)

# Under both packages in `make soak` (test_other_lightning.py).


@pytest.fixture(scope="module")
def seen(run_ranks) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT)


def test_each_rank_generates_its_share_and_rank_zero_scores_all(seen) -> None:
    decided = [rank["decided"] for rank in seen]
    assert decided[0]["prompts"] == [["p0", "p0", "p2", "p2", "p4", "p4"]] * 4
    assert decided[1]["prompts"] == [["p1", "p1", "p3", "p3"]] * 4
    assert decided[1]["scored"] == []
    first = decided[0]["scored"][0]
    assert [text.split()[0] for text in first] == [f"p{i}" for i in range(5) for _ in range(2)]
    assert len(set(first)) == 10  # the ranks draw differently


def test_all_ranks_make_the_decisions_of_rank_zero(module_folder: Path, seen) -> None:
    """Even for a metric that each rank logs for itself."""
    for rank in (rank["decided"] for rank in seen):
        assert (rank["error"], rank["score"], rank["stopped_step"]) == ("", 0.25, 4)
        assert rank["best"] == "step=000002-v=0.500.ckpt"
        assert rank["front"]["kept"] == {"1": [0.25, -1.0], "2": [0.5, -2.0]}
        assert rank["front"]["pruned"] == {"3": [0.25, -3.0], "4": [0.25, -4.0]}
    folder = module_folder / "decided"
    written = Samples.from_jsonl(folder / "samples" / "score" / "step=000004.jsonl")
    assert list(written.texts) == seen[0]["decided"]["scored"][-1]
    names = ("step=000001-v=0.250-uneven=-1.000", "step=000002-v=0.500-uneven=-2.000")
    expected = [f"{name}{end}" for name in names for end in (".ckpt", "-adapter")]
    found = sorted(path.name for path in (folder / "front").iterdir())
    assert found == sorted([*expected, "front.png"])
    for name in ("kept/step=000002-v=0.500", "kept/last", *(f"front/{name}" for name in names)):
        assert [path.name for path in (folder / f"{name}-adapter").iterdir()] == ["rank0"]


@pytest.mark.parametrize(
    ("part", "rank", "error"),
    [("scorer", 0, "ValueError: no scores"), ("generator", 1, "RuntimeError: no words")],
)
def test_a_failing_part_ends_all_ranks(seen, part: str, rank: int, error: str) -> None:
    assert seen[rank][part]["error"] == error
    assert seen[1 - rank][part]["error"] == f"RuntimeError: rank {rank} failed with {error}"


def test_two_ranks_log_and_write_the_same_as_one(module_folder, seen, tmp_path) -> None:
    """Of seven prompts the ranks get four and three; the duplicate is scored once."""
    single, both = two_ranks.run_steady(tmp_path, 1), module_folder / "steady"
    rows = [f"t{i}" for i in range(5) for _ in range(2)]
    assert [call[0] for call in single["asked"]] == [rows] * 2  # before, after
    shares = [["t0", "t0", "t2", "t2", "t4", "t4"], ["t1", "t1", "t3", "t3"]]
    for rank, share in zip(seen, shares, strict=True):
        assert rank["steady"]["metrics"] == single["metrics"]
        assert rank["steady"]["asked"] == [[share, False, False]] * 2
        assert rank["steady"]["modes"] == single["modes"] == [True, False]
    assert seen[0]["steady"]["scored"] == single["scored"]
    assert seen[1]["steady"]["scored"] == []
    files = {f"{name}.jsonl": 10 for name in ("before", "after", "copy")}
    logs = [next(folder.rglob("samples")).parent for folder in (both, tmp_path)]
    for name, count in files.items():
        assert (both / name).read_text() == (tmp_path / name).read_text()
        assert len((tmp_path / name).read_text().splitlines()) == count
    for step in (1, 2, 3):
        written = [log / "samples" / "score" / f"step={step:06d}.jsonl" for log in logs]
        assert written[0].read_text() == written[1].read_text()
        assert len(written[1].read_text().splitlines()) == 7
    summaries = [json.loads((at / "summary.json").read_text()) for at in (both, tmp_path)]
    for key in ("before", "after", "difference", "difference_ci95", "others", "steps"):
        assert summaries[0][key] == summaries[1][key]
    curves = [run.curve("score/scored_step", "score/v") for run in read_runs(both)]
    assert [[*each] for each in curves] == [[1, 2, 3]]  # of rank 0 alone


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
