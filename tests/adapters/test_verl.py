"""The contract of verl 0.9.1.

`reward_loop/reward_manager/naive.py` makes concurrent calls of one sample each, by keyword, and
awaits the function if `inspect.iscoroutinefunction` is true, also for the partial in which
`trainer/ppo/reward.py` wraps it. `reward_loop.py` makes an array for each key of the first result,
and a float32 tensor of the scores. `remote.py` refuses a coroutine function, and calls the pickled
partial by keyword in an actor of Ray.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ctrlreward import FunctionScorer, Reward, Samples
from ctrlreward.adapters.verl import as_async_compute_score, as_compute_score

TEXTS = ["ab", "f", "aab", "abcf", "b"]
COLUMNS = {"labels": "ground_truth", "sources": "text"}


def rows() -> list[dict[str, Any]]:
    return [
        {"data_source": "d", "solution_str": t, "ground_truth": "glad", "extra_info": {"text": "s"}}
        for t in TEXTS
    ]


def by_single_calls(reward: Reward) -> list[dict[str, float | None]]:
    compute_score = as_compute_score(reward, -9.0, COLUMNS)
    return [compute_score(**row) for row in rows()]


def by_concurrent_calls(reward: Reward) -> list[dict[str, float | None]]:
    async def wrapped(function: Any, extra: dict[str, Any], **given: Any) -> Any:
        return await function(**given, **extra)

    compute_score = partial(wrapped, as_async_compute_score(reward, -9.0, COLUMNS), {"more": 1})

    async def run_all() -> list[dict[str, float | None]]:
        return await asyncio.gather(*(compute_score(**row) for row in rows()))

    return asyncio.run(run_all())


@pytest.mark.parametrize(("way", "calls"), [(by_single_calls, 5), (by_concurrent_calls, 1)])
def test_results_equal_the_rewards_and_share_keys(reward, letters, way, calls) -> None:
    results = way(reward)
    assert len(letters.scored) == calls
    assert (letters.scored[0].labels[0], letters.scored[0].sources[0]) == ("glad", "s")
    batch = reward(Samples(TEXTS))
    assert [result["failed"] for result in results] == [0.0, 1.0, 0.0, 1.0, 0.0]
    scores = torch.tensor([result["score"] for result in results], dtype=torch.float32)
    expected = torch.from_numpy(np.where(batch.failed, -9.0, batch.total)).float()
    torch.testing.assert_close(scores, expected)
    assert {tuple(result) for result in results} == {("score", "share", "length", "failed")}
    stacked = {key: np.array([result[key] for result in results]) for key in results[0]}
    assert stacked["length"].tolist() == [2.0, -9.0, 3.0, -9.0, 1.0]
    assert stacked["share"].tolist() == pytest.approx([0.5, -9.0, 2 / 3, -9.0, 0.0])


def test_the_remote_manager_gets_a_plain_function_by_keyword(reward) -> None:
    """The pickled partial of verl, as an actor that is not this process would call it."""
    settings = {"reward_router_address": None, "reward_model_tokenizer": None}
    plain = partial(as_compute_score(reward, -9.0, COLUMNS), **settings)
    assert not inspect.iscoroutinefunction(plain)
    there = pickle.loads(pickle.dumps(plain))
    extra = {"text": "s", "num_turns": None, "rollout_reward_scores": {}}
    assert [there(**{**row, "extra_info": extra}) for row in rows()] == by_single_calls(reward)


def test_later_calls_form_another_batch_and_a_cancelled_one_cancels_no_other(
    reward, letters
) -> None:
    compute_score = as_async_compute_score(reward, -9.0, {"prefixes": "start"}, wait=0.05)

    async def in_two_waves() -> list[Any]:
        results: list[Any] = []
        for wave in (("ab", "aab"), ("b",)):
            calls = (compute_score("d", text, None, {"start": "a"}) for text in wave)
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0)
            if len(tasks) == 2:
                tasks[0].cancel()
            results += await asyncio.gather(*tasks, return_exceptions=True)
        return results

    cancelled, *others = asyncio.run(in_two_waves())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [samples.texts for samples in letters.scored] == [("aab", "aaab"), ("ab",)]
    assert [result["length"] for result in others] == [4.0, 2.0]


def test_samples_of_a_closed_event_loop_are_not_scored_in_the_next(reward, letters) -> None:
    compute_score = as_async_compute_score(reward, -9.0, wait=0.5)

    async def score(text: str, timeout: float) -> dict[str, float | None]:
        return await asyncio.wait_for(compute_score("d", text, None), timeout)

    with pytest.raises(TimeoutError):
        asyncio.run(score("ab", 0.1))
    assert asyncio.run(score("b", 10.0))["length"] == 1.0
    assert [samples.texts for samples in letters.scored] == [("b",)]


def test_a_failing_sample_fails_alone_and_every_caller_gets_an_error(letters) -> None:
    def broken(texts: list[str]) -> list[float]:
        if "bad" in texts:
            raise RuntimeError("a bad text")
        return [1.0] * len(texts)

    async def together(reward: Reward, *texts: str) -> list[Any]:
        compute_score = as_async_compute_score(reward, -9.0)
        calls = (compute_score("d", text, None) for text in texts)
        return await asyncio.gather(*calls, return_exceptions=True)

    reward = Reward({"s": FunctionScorer(broken, pointwise=True)})
    first, bad, last = asyncio.run(together(reward, "ab", "bad", "b"))
    assert (first["score"], str(bad), last["score"]) == (1.0, "a bad text", 1.0)
    total = Reward({"s": letters["share"]}, aggregate=lambda scores: {}["no totals"])
    errors = asyncio.run(together(total, "ab", "b"))
    assert [type(each) for each in errors] == [KeyError] * 2


def test_what_would_be_scored_wrong_is_an_error(reward, kinds) -> None:
    with pytest.raises(ValueError, match="tone"):
        as_compute_score(reward, -9.0, {"labels": "tone"})("d", "b", "", {"mood": "sad"})
    with pytest.raises(ValueError, match="failed_score"):
        as_compute_score(reward, float("nan"))
    with pytest.raises(ValueError, match="failed_score"):
        as_compute_score(reward, None)
    for build in (as_compute_score, as_async_compute_score):
        with pytest.raises(ValueError, match="kinds"):
            build(Reward({"kinds": kinds["kinds"]}), -9.0)
