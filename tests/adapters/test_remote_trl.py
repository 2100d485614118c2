"""TRL's GRPO and verl's coroutine with a served reward: the rewards of the process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ctrlreward import Reward
from ctrlreward.adapters.trl import as_async_reward_funcs, as_component_funcs, as_reward_funcs
from ctrlreward.adapters.verl import as_async_compute_score
from ctrlreward.serving.remote_reward import RemoteReward

COLUMNS = {"labels": "tone", "prefixes": "prompt"}


def logged(trainer: Any) -> list[dict[str, float]]:
    """All values of the trainer's log that come from the reward."""
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == 3
    words = ("reward", "share", "length", "fail_rate")
    return [{k: v for k, v in row.items() if any(w in k for w in words)} for row in rows]


@pytest.mark.parametrize("build", [as_reward_funcs, as_async_reward_funcs])
def test_grpo_logs_the_same_rewards(
    train: Callable[..., Any], serve: Callable[..., Any], reward: Reward, build: Any
) -> None:
    here = train(build(reward, COLUMNS))
    remote = RemoteReward(serve(reward).url)
    served = train(pickle.loads(pickle.dumps(build(remote, COLUMNS))))
    np.testing.assert_equal(
        list(served._logs["rewards"]["reward"]), list(here._logs["rewards"]["reward"])
    )
    assert list(served._logs["completion"]) == list(here._logs["completion"])
    np.testing.assert_equal(logged(served), logged(here))


def test_component_functions_have_the_weights_of_the_server(
    serve: Callable[..., Any], reward: Reward
) -> None:
    remote = RemoteReward(serve(reward).url)
    functions, weights = as_component_funcs(remote)
    here, weights_here = as_component_funcs(reward)
    assert weights == weights_here == [2.0, -0.125]
    for function, other in zip(functions, here, strict=True):
        given = (["p"] * 3, ["ab", "f", "aab"])
        assert function.__name__ == other.__name__
        assert function(*given) == other(*given)


def test_verl_scores_concurrent_samples_in_one_request(
    serve: Callable[..., Any], reward: Reward, letters: Any
) -> None:
    texts = ["ab", "f", "aab", "b"]

    async def all_at_once(given: Reward) -> list[Any]:
        compute_score = as_async_compute_score(given, -9.0)
        return await asyncio.gather(*(compute_score("d", text, None) for text in texts))

    here = asyncio.run(all_at_once(reward))
    letters.scored.clear()
    assert asyncio.run(all_at_once(RemoteReward(serve(reward).url))) == here
    assert [sorted(samples.texts) for samples in letters.scored] == [sorted(texts)]
