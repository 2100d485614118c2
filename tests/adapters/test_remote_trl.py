"""TRL's GRPO with a served reward: the rewards of the process."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from ctrlreward.adapters.trl import as_async_reward_funcs, as_reward_funcs
from ctrlreward.serving.remote_reward import RemoteReward

COLUMNS = {"labels": "tone", "prefixes": "prompt"}


def logged(trainer: Any) -> list[dict[str, float]]:
    """All values of the trainer's log that come from the reward."""
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == 3
    words = ("reward", "share", "length", "fail_rate")
    return [{k: v for k, v in row.items() if any(w in k for w in words)} for row in rows]


@pytest.mark.parametrize("build", [as_reward_funcs, as_async_reward_funcs])
def test_grpo_logs_the_same_rewards(train, serve, reward, build) -> None:
    here = train(build(reward, COLUMNS))
    remote = RemoteReward(serve(reward).url)
    served = train(pickle.loads(pickle.dumps(build(remote, COLUMNS))))
    np.testing.assert_equal(
        list(served._logs["rewards"]["reward"]), list(here._logs["rewards"]["reward"])
    )
    assert list(served._logs["completion"]) == list(here._logs["completion"])
    np.testing.assert_equal(logged(served), logged(here))
