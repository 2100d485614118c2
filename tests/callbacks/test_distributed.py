"""Runs of two processes on the CPU, started once for all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decision_cases import (
    BY_PROMPT,
    HandDriven,
    names_on_two_ranks,
    one_of_each_kind,
    without_prompts,
)
from module_files import load
from wandb_runs import read_runs

from ctrlreward import Samples

SCRIPT = Path(__file__).with_name("two_ranks.py")
two_ranks = load(SCRIPT)

# Under both packages in `make soak` (test_other_lightning.py).


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, run_ranks) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT, *names_on_two_ranks(request))


def test_each_rank_generates_its_share_and_rank_zero_scores_all(seen) -> None:
    assert seen[0]["good"]["prompts"] == [["p0", "p0", "p2", "p2", "p4", "p4"]] * 4
    assert seen[1]["good"]["prompts"] == [["p1", "p1", "p3", "p3"]] * 4
    assert seen[1]["good"]["scored"] == []
    first = seen[0]["good"]["scored"][0]
    assert [text.split()[0] for text in first] == [f"p{i}" for i in range(5) for _ in range(2)]
    assert len(set(first)) == 10  # the ranks draw differently


def test_all_ranks_log_the_same_and_make_the_same_decisions(seen) -> None:
    for rank in seen:
        assert rank["good"]["metrics"] == {"score/v": 0.25, "score/fail_rate": 0.0}
        assert rank["good"]["stopped_step"] == 4
        assert rank["good"]["best"] == "step=000002-v=0.500.ckpt"


@pytest.mark.parametrize("name", one_of_each_kind(BY_PROMPT))
def test_both_ranks_decide_by_prompt_as_the_rules_do(seen, name: str) -> None:
    names = {"ProxyGuard": "alarm", "RewardEarlyStopping": "stop", "RewardCheckpoint": "best"}
    hand = HandDriven(BY_PROMPT[name]).play()
    for rank in seen:
        for callback, state in rank["by prompt"][name].items():
            expected = json.loads(json.dumps(hand.states[names[callback]].to_dict()))
            assert without_prompts(state) == without_prompts(expected), callback


def test_rank_zero_writes_samples_and_adapters(module_folder: Path, seen) -> None:
    written = Samples.from_jsonl(module_folder / "good" / "samples" / "score" / "step=000004.jsonl")
    assert list(written.texts) == seen[0]["good"]["scored"][-1]
    for name in ("step=000002-v=0.500-adapter", "last-adapter"):
        exported = module_folder / "good" / "kept" / name
        assert [path.name for path in exported.iterdir()] == ["rank0"]


def test_all_ranks_keep_the_same_front(module_folder: Path, seen) -> None:
    """Rank 0 decides, even for a metric that each rank logs for itself."""
    for rank in seen:
        assert rank["good"]["front"]["kept"] == {"2": [0.5, 0.0]}
        assert rank["uneven"]["front"]["kept"] == {"1": [0.25, -1.0], "2": [0.5, -2.0]}
        assert rank["uneven"]["front"]["pruned"] == {"3": [0.25, -3.0], "4": [0.25, -4.0]}
    names = ("step=000001-v=0.250-uneven=-1.000", "step=000002-v=0.500-uneven=-2.000")
    expected = [f"{name}{end}" for name in names for end in (".ckpt", "-adapter")]
    front = module_folder / "uneven" / "front"
    assert sorted(path.name for path in front.iterdir()) == sorted([*expected, "front.png"])
    for name in names:
        assert [path.name for path in (front / f"{name}-adapter").iterdir()] == ["rank0"]


def test_a_failing_scorer_ends_all_ranks(seen) -> None:
    assert seen[0]["scorer"]["error"] == "ValueError: no scores"
    assert seen[1]["scorer"]["error"] == "RuntimeError: rank 0 failed with ValueError: no scores"


def test_two_ranks_log_and_write_the_same_as_one(module_folder, seen, tmp_path) -> None:
    """Of seven prompts the ranks get four and three; the duplicate is scored once."""
    name = "steady"
    single = two_ranks.run_steady(tmp_path, 1)
    for rank in seen:
        assert rank[name]["metrics"] == single["metrics"]
    assert seen[0][name]["scored"] == single["scored"]
    assert [len(texts) for texts in single["scored"]] == [6] * 3
    assert seen[1][name]["scored"] == []
    for step in (1, 2, 3):
        file = Path("samples", "score", f"step={step:06d}.jsonl")
        assert (module_folder / name / file).read_text() == (tmp_path / file).read_text()
        assert len((tmp_path / file).read_text().splitlines()) == 7


def test_two_ranks_share_the_texts_before_and_after_and_write_the_same_as_one(
    module_folder: Path, seen, tmp_path: Path
) -> None:
    single = two_ranks.run_compared(tmp_path, 1)
    rows = [f"t{i}" for i in range(5) for _ in range(2)]
    assert [call[0] for call in single["asked"]] == [rows] * 2  # before, after
    shares = [["t0", "t0", "t2", "t2", "t4", "t4"], ["t1", "t1", "t3", "t3"]]
    for rank, share in zip(seen, shares, strict=True):
        assert rank["compared"]["asked"] == [[share, False, False]] * 2
        assert rank["compared"]["modes"] == single["modes"] == [True, False]
    assert seen[0]["compared"]["scored"] == single["scored"]
    assert seen[1]["compared"]["scored"] == []
    for name in ("before", "after", "copy"):
        written = (module_folder / "compared" / f"{name}.jsonl").read_text()
        assert written == (tmp_path / f"{name}.jsonl").read_text()
        assert len(written.splitlines()) == 10
    summaries = [
        json.loads((at / "summary.json").read_text())
        for at in (module_folder / "compared", tmp_path)
    ]
    for key in ("before", "after", "difference", "difference_ci95", "others", "steps"):
        assert summaries[0][key] == summaries[1][key]


def test_a_failing_generator_ends_all_ranks(seen) -> None:
    error = "RuntimeError: no words"
    assert seen[1]["generator"]["error"] == error
    assert seen[0]["generator"]["error"] == f"RuntimeError: rank 1 failed with {error}"


def test_an_alarm_on_one_rank_stops_all_ranks(seen) -> None:
    assert [rank["guarded"] for rank in seen] == [{"alarm_step": 2, "steps": 2}] * 2


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


def test_rank_zero_alone_logs_to_weights_and_biases(seen, module_folder: Path) -> None:
    (run,) = read_runs(module_folder / "wandb_runs")
    assert run.curve("score/scored_step", "score/v") == {1: 0.25, 2: 0.5}
