"""Replies of `/get_reward`, and the options that are refused at the start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import CTRLEval, FunctionScorer, Reward, RewardBatch
from ctrlreward.adapters.openrlhf import as_reward_func
from ctrlreward.serving.get_reward import GetReward, get_reward_route

OPTIONS = GetReward(-9.0, columns={"prefixes": "prompt"}, end_tokens=("<eos>",))


def test_replies_have_the_rewards_and_the_same_keys(serve: Callable[..., Any], reward) -> None:
    """As OpenRLHF posts requests: all texts, or one, or none, and no labels."""
    client, completions = serve(reward, OPTIONS).client, ["ab<eos>", "f<eos>", "aab", "b"]
    replies = []
    for texts in (completions, completions[1:2], []):
        body = {"query": [f"cd{text}" for text in texts], "prompts": ["cd"] * len(texts)}
        replies.append(client.post("/get_reward", json=body).json())
    batch = reward([f"cd{text.removesuffix('<eos>')}" for text in completions])
    assert batch.failed.tolist() == [False, True, False, False]
    expected = pytest.approx(np.where(batch.failed, -9.0, batch.total).tolist())
    assert replies[0]["rewards"] == replies[0]["scores"] == expected
    assert replies[0]["extra_logs"]["failed"] == [0.0, 1.0, 0.0, 0.0]
    assert replies[1]["rewards"] == [-9.0]
    logs = {"share": [], "length": [], "failed": []}
    assert replies[2] == {"rewards": [], "scores": [], "extra_logs": logs}
    assert {tuple(reply["extra_logs"]) for reply in replies} == {tuple(logs)}


LABELLED = GetReward(-9.0, {"labels": "label"})


@pytest.mark.parametrize(
    ("options", "body", "message"),
    [
        (OPTIONS, {"query": ["ab"], "prompts": ["b"]}, "does not start with"),
        (OPTIONS, {"query": ["ab"], "prompts": []}, "prompts"),
        (LABELLED, {"query": ["a"], "prompts": [""], "labels": []}, "labels"),
        (LABELLED, {"query": ["a"], "prompts": [""], "labels": [None]}, "labels[0]"),
    ],
)
def test_wrong_bodies_are_422(serve, reward, options, body, message) -> None:
    reply = serve(reward, options).client.post("/get_reward", json=body)
    assert reply.status_code == 422, reply.text
    assert message in reply.json()["detail"]


def test_options_that_cannot_work_are_refused_at_the_start(reward, kinds) -> None:
    with pytest.raises(ValueError, match="kinds"):
        get_reward_route(GetReward(0.0), Reward({"kinds": kinds["kinds"]}))
    coherence = Reward({"coherence": CTRLEval(task="sentiment")["attribute_relevance"]})
    with pytest.raises(ValueError, match="labels"):
        get_reward_route(GetReward(0.0, {"prefixes": "prompt"}), coherence)


SCORES = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(st.tuples(SCORES, SCORES), max_size=6), st.floats(-5, 5))
def test_replies_are_finite_and_the_mean_can_be_recovered(
    rows: list[tuple[float, float]], failed_score: float
) -> None:
    total, share = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    failed = ~np.isfinite(total) | ~np.isfinite(share)
    batch = RewardBatch(np.where(failed, np.nan, total), {"share": share}, failed, 0.0)
    convert = as_reward_func(FunctionScorer(len, pointwise=True), (), failed_score)
    values = convert.values(batch)
    assert list(values) == ["rewards", "share", "failed"]
    assert all(math.isfinite(value) for column in values.values() for value in column)
    if len(rows) and not failed.all():
        rate = np.mean(values["failed"])
        mean = (np.mean(values["share"]) - rate * failed_score) / (1 - rate)
        scale = np.abs(share[~failed]).max() + 5
        assert mean == pytest.approx(share[~failed].mean(), abs=1e-9 * scale)
