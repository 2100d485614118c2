"""Components that are normalised each by itself (GDPO), and groups without signal.

Compared with TRL 1.16, by a step of its trainer on given rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import MisconfigurationException, RewardShaping, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader
from trainer_runs import tiny_trl
from tuner_records import learned, logged

from ctrlreward import Reward, Samples
from ctrlreward.functional.advantages import decoupled_rewards, zero_signal
from ctrlreward.policy.objectives import completion_advantages

NAN = math.nan
WEIGHTS = (1.0, 0.5)
# Two components on different scales, of three groups of four; the last group has no signal.
TABLE = [
    *([1.0, 10.0], [2.0, 40.0], [4.0, 20.0], [0.0, 10.0]),
    *([3.0, 7.0], [3.0, -7.0], [1.0, 0.5], [0.0, 7.0]),
    *([0.1, 0.2], [0.1, 0.2], [0.1, 0.2], [0.1, 0.2]),
]


def advantages(table: list[list[float]], scale: str = "components") -> Tensor:
    """Ours, of groups of four; a sample that lacks a component has failed."""
    scores, groups = torch.tensor(table, dtype=torch.float64), torch.arange(len(table)) // 4
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    decoupled = decoupled_rewards(scores, weights, groups)
    rewards = decoupled if scale == "components" else scores @ weights
    return completion_advantages("group", scale, rewards, groups)  # type: ignore[arg-type]


# TRL


def test_decoupled_advantages_and_the_share_without_signal_are_trls(
    tiny_llama: Callable[[str], str], tmp_path: Path
) -> None:
    """A step of its trainer on the table of rewards."""

    def column(k: int) -> Callable[..., list[float]]:
        function = lambda completions, **_: [row[k] for row in TABLE]  # noqa: E731
        function.__name__ = f"column_{k}"
        return function

    def stepped(**options: Any) -> Any:
        trainer = tiny_trl(
            tiny_llama("abcdef"),
            tmp_path,
            ["ab", "cd", "ef"] * 4,
            reward_funcs=[column(0), column(1)],
            eval_strategy="no",
            max_steps=1,
            per_device_train_batch_size=len(TABLE),
            num_generations=4,
            max_completion_length=3,
            reward_weights=list(WEIGHTS),
            **options,
        )
        trainer.train()
        return trainer

    trainer = stepped(multi_objective_aggregation="normalize_then_sum")
    theirs = torch.tensor(list(trainer._logs["advantages"]), dtype=torch.float64)
    torch.testing.assert_close(advantages(TABLE), theirs, rtol=1e-5, atol=1e-5)
    assert theirs[:8].abs().min() > 0.01
    summed = advantages(TABLE, "group")
    assert (summed - theirs).abs().max() > 0.3  # the wider component rules the sum
    totals = torch.tensor(TABLE, dtype=torch.float64) @ torch.tensor(WEIGHTS, dtype=torch.float64)
    silent = zero_signal(totals, torch.arange(12) // 4).double().mean().item()
    logged = stepped().state.log_history[0]["frac_reward_zero_std"]
    assert silent == pytest.approx(logged, abs=1e-6) == pytest.approx(1 / 3)


# In a step


def test_a_step_learns_from_decoupled_components(tuner, share, monkeypatch) -> None:
    reward = Reward({"share": (share["share"], 2.0), "length": (share["length"], -0.01)})
    module = tuner(reward=reward, scale="components")
    experiences, values = learned(monkeypatch), logged(module)
    module.configure_model()
    torch.manual_seed(0)
    module.training_step(Samples(["ab", "cd", "f"]), 0)
    batch = module.last_rollout[1]
    table = np.stack([batch.components["share"], batch.components["length"]], axis=1)
    failed = torch.from_numpy(batch.failed)
    assert 0 < failed.sum() < 12  # empty completions
    assert values["reward/fail_rate"] == pytest.approx(failed.double().mean().item())
    scores = torch.from_numpy(table).masked_fill(failed[:, None], NAN)
    decoupled = decoupled_rewards(scores, torch.tensor([2.0, -0.01]), torch.arange(12) // 4)
    expected = torch.zeros(12, dtype=torch.float64)
    kept = decoupled[~failed]
    expected[~failed] = (kept - kept.mean()) / (kept.std() + 1e-4)
    torch.testing.assert_close(experiences[0], expected, rtol=1e-4, atol=1e-4)


# Refused


def test_shaping_of_the_total_is_refused(tuner) -> None:
    module = tuner(scale="components")
    trainer = quiet_trainer(max_steps=1, callbacks=[RewardShaping(clip=(-1.0, 1.0))])
    with pytest.raises(MisconfigurationException, match="RewardShaping"):
        trainer.fit(module, DataLoader(["ab"] * 4, batch_size=4))
