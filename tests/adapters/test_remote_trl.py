"""TRL's GRPO with a served reward: the rewards of the process."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from types import SimpleNamespace
from typing import Any

import accelerate
import numpy as np
import pytest

from ctrlreward import Reward
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


@pytest.mark.parametrize("build", [as_reward_funcs, as_async_reward_funcs])
def test_async_grpo_scores_a_group_as_in_process(serve, reward, build) -> None:
    """The trainer's own rollout loop, without the vLLM server that it asks for completions."""
    worker = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker")
    accelerate.PartialState(cpu=True)  # as at the start of the loop's process; its logger needs it
    texts = ["ab", "f", "aab", "b"]

    def scored(given: Reward) -> list[Any]:
        context = multiprocessing.get_context("spawn")
        loop = worker._AsyncRolloutLoop(
            model_name="",
            dataset=[],
            # As they reach the process in which the loop runs.
            reward_funcs=pickle.loads(pickle.dumps(build(given, COLUMNS))),
            processing_class=SimpleNamespace(response_template="{{ content }}"),
            eos_token_ids=[],
            rollout_buffer=context.Queue(),
            model_version_value=context.Value("i", 0),
            heartbeat_value=context.Value("d", 0.0),
            failed_event=context.Event(),
            exception_info_queue=context.Queue(1),
            metrics_queue=context.Queue(),
        )
        sequence = worker.TrainingSequence([1], [1], [0.0], None)
        group = worker.RolloutGroup(
            prompts=[[{"role": "user", "content": "p"}]] * 4,
            reward_kwargs={"tone": ["glad"] * 4},
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            completions_ids=[[1]] * 4,
            completions_sequences=[[sequence]] * 4,
            tool_call_counts=[0] * 4,
            tool_failure_counts=[0] * 4,
            model_version=0,
            group_id=0,
            env_rewards=[None] * 4,
            rollout_rewards=[None] * 4,
        )
        return asyncio.run(loop._score_group(group))

    here, served = scored(reward), scored(RemoteReward(serve(reward).url))
    totals = np.array([2 / 3 - 3 / 8, np.nan, 4 / 4 - 4 / 8, -2 / 8])  # of prompt + completion
    np.testing.assert_allclose([sample.metrics["reward"] for sample in served], totals, rtol=1e-6)
    expected = np.nan_to_num((totals - np.nanmean(totals)) / np.nanstd(totals))
    np.testing.assert_allclose([s.advantage for s in served], expected, rtol=1e-5, atol=1e-12)
    assert [s.advantage for s in served] == [s.advantage for s in here]
