"""The file that names the checkpoint to keep, as trainers without callbacks call for it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlreward.adapters.best_checkpoint import BestCheckpoint
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, RunRules, StopRule

ROWS = [(10, 0.2, 0.5), (20, 0.4, 0.75), (30, 0.6, 0.625), (40, 0.9, 0.25), (50, 0.5, 0.75)]
ALARM = AlarmRule("reward", {"acc": "max"})
RULES = RunRules(
    BestRule("reward", constraints={"acc": (0.5, None)}), StopRule("reward", patience=1)
)


def metrics(reward: float, accuracy: float) -> dict[str, Any]:
    return {"reward": np.float64(reward), "acc": accuracy, "table": object(), "bad": math.nan}


def named(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "best_checkpoint.json").read_text())
    return content


def test_the_file_names_the_checkpoint_to_keep(tmp_path: Path) -> None:
    best_checkpoint = BestCheckpoint(tmp_path, RULES)
    kept = []
    for step, reward, accuracy in ROWS:
        decided = best_checkpoint(step, metrics(reward, accuracy))
        (tmp_path / f"global_step_{step}").mkdir()
        best_checkpoint.refresh()
        kept.append((decided.best, decided.stopped, named(tmp_path)["step"]))
    assert kept == [
        (10, False, 10), (20, False, 20), (30, False, 30), (30, False, 30), (30, True, 30),
    ]  # fmt: skip
    content = named(tmp_path)
    assert content["checkpoint"] == str(tmp_path / "global_step_30")
    assert (content["value"], content["stop_step"], content["alarm_step"]) == (0.6, 50, None)


def test_a_validation_before_training_has_no_checkpoint_to_name(tmp_path: Path) -> None:
    best_checkpoint = BestCheckpoint(tmp_path, RULES)
    assert best_checkpoint(0, metrics(0.9, 0.9)).best == 0
    assert named(tmp_path)["step"] is named(tmp_path)["checkpoint"] is None
    best_checkpoint(10, metrics(0.2, 0.5))
    (tmp_path / "global_step_10").mkdir()
    best_checkpoint(20, metrics(0.1, 0.5))
    content = named(tmp_path)
    assert (content["step"], content["value"]) == (10, 0.2)
    assert content["checkpoint"] == str(tmp_path / "global_step_10")


@pytest.mark.parametrize(
    "rules", [RunRules(pareto=ParetoRule({"reward": "max", "acc": "max"})), RunRules(alarm=ALARM)]
)
def test_a_front_is_chosen_from_on_disk_and_no_rule_names_none(
    tmp_path: Path, rules: RunRules
) -> None:
    best_checkpoint = BestCheckpoint(tmp_path, rules)
    for step, reward in ((0, 0.9), (10, 0.5), (20, 0.6)):
        best_checkpoint(step, metrics(reward, 0.5))
    (tmp_path / "global_step_10").mkdir()
    best_checkpoint.refresh()
    assert named(tmp_path)["step"] == (10 if rules.pareto else None)


def test_a_resumed_run_decides_as_an_uncut_one(tmp_path: Path) -> None:
    for place in (tmp_path / "uncut", tmp_path / "cut"):
        (place / "global_step_30").mkdir(parents=True)
        best_checkpoint = BestCheckpoint(place, RULES)
        for step, reward, accuracy in ROWS[:4]:
            best_checkpoint(step, metrics(reward, accuracy))
    resumed = BestCheckpoint(tmp_path / "cut", RULES)  # from the checkpoint of step 20
    for step, reward, accuracy in ROWS[2:]:
        resumed(step, metrics(reward, accuracy))
    uncut = BestCheckpoint(tmp_path / "uncut", RULES)
    uncut(50, metrics(0.5, 0.75))
    both = [named(tmp_path / name) for name in ("cut", "uncut")]
    assert [each.pop("checkpoint")[-2:] for each in both] == ["30", "30"]
    assert both[0] == both[1]
    rows = (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [10, 20, 30, 40, 50]


def test_scores_by_prompt_raise_the_alarm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rules = RunRules(BestRule("reward"), alarm=AlarmRule("reward", "quality"))
    best_checkpoint = BestCheckpoint(tmp_path, rules, "_actor/global_step{step}")
    for step, quality in [(10, 0.8), (20, 0.7), (30, 0.5)]:
        row = quality + 0.1 * rng.normal(size=24)
        values = {"reward": 1 - quality, "quality": float(row.mean())}
        best_checkpoint(step, values, {"quality": row})
        (tmp_path / "_actor" / f"global_step{step}").mkdir(parents=True)
    best_checkpoint.refresh()
    assert named(tmp_path)["alarm_step"] in (20, 30)
    assert named(tmp_path)["checkpoint"] == str(tmp_path / "_actor" / "global_step30")
