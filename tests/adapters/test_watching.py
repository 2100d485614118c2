"""`watch` changes nothing that a trainer sees, and logs what can be counted by hand."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import watched_functions as functions

from ctrlreward import Reward, watch
from ctrlreward.adapters import watching
from ctrlreward.adapters.trl import as_reward_funcs

PROMPTS, COMPLETIONS = ["p", "p", "q", "q"], ["a b", "a a a a", "b", "c"]
VERL = {"data_source": "math", "solution_str": "7", "ground_truth": "7", "extra_info": {"index": 3}}
QUERIES = {"queries": ["p: yes", "q: no"], "prompts": ["p: ", "q: "], "labels": ["", ""]}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (functions.share, {"prompts": PROMPTS, "completions": COMPLETIONS, "label": [1] * 4}),
        (functions.brevity, {"completions": COMPLETIONS}),
        (functions.compute_score, VERL),
        (functions.reward_func, QUERIES),
        (functools.partial(functions.share, []), {"completions": COMPLETIONS}),
    ],
)
def test_same_values_name_and_signature(function, arguments, tmp_path) -> None:
    watched = watch(function, tmp_path / "log.jsonl")
    copied = pickle.loads(pickle.dumps(watched))
    expected = function(**arguments)
    for each in (watched, copied):
        assert repr(each(**arguments)) == repr(expected)
        assert inspect.signature(each) == inspect.signature(function)
        assert not inspect.iscoroutinefunction(each)
    from trl.trainer.utils import get_callable_name

    assert get_callable_name(watched) == get_callable_name(function)


def test_errors_are_the_functions_and_its_own_one_warning(tmp_path, caplog) -> None:
    with pytest.raises(KeyError, match="no such column"):
        watch(functions.broken, tmp_path / "log.jsonl")(completions=["a"])
    rewards = object()
    watched = watch(lambda completions: rewards, tmp_path / "log.jsonl")
    for _ in range(3):
        assert watched(completions=["a"]) is rewards  # the very object
    assert watch(max, tmp_path / "max.jsonl")([3.0]) == 3.0  # has no signature
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_statistics_by_hand(tmp_path) -> None:
    path = tmp_path / "run" / "watch.jsonl"
    watch(functions.share, path)(PROMPTS, ["a a", "b b b b", "a b a b a b", "b"])
    (row,) = rows_of(path)
    assert row["step"] == 1
    assert row["watch/reward"] == pytest.approx((2 / 3 + 3 / 11) / 2)
    assert row["watch/fail_rate"] == 0.5
    assert row["watch/length"] == (3 + 3.5) / 2  # words: 2, 4; 6, 1
    # Trigrams "b b b" twice: 1/2; "aba", "bab" twice each: 1/2; too short: none. Mean over groups.
    assert row["watch/repetition"] == 0.5


def test_openrlhf_and_verl_are_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "SINGLE_SAMPLES", 4)
    watch(functions.reward_func, tmp_path / "openrlhf.jsonl")(**QUERIES)
    (row,) = rows_of(tmp_path / "openrlhf.jsonl")
    assert (row["watch/reward"], row["watch/component/half"]) == (5.5, 2.75)
    assert row["watch/length"] == 1.0
    watched = watch(functions.compute_score, tmp_path / "verl.jsonl")
    for answer in ["7", "8", "7 apples", "7", "7", "", "8", "7"]:
        watched("math", answer, "7", {"index": 3})
    rows = rows_of(tmp_path / "verl.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert (rows[0]["watch/reward"], rows[0]["watch/length"]) == (0.5, 1.25)
    assert (rows[1]["watch/reward"], rows[1]["watch/fail_rate"]) == (2 / 3, 0.25)


def test_a_reward_stays_a_reward(reward: Reward, tmp_path) -> None:
    watched = watch(reward, tmp_path / "watch.jsonl")
    assert isinstance(watched, Reward)
    texts, prompts = ["ab", "aa", "f"], ["p", "p", "q"]
    batch, expected = watched(texts, prompts=prompts), reward(texts, prompts=prompts)
    np.testing.assert_array_equal(batch.total, expected.total)
    assert watched.submit(texts, prompts=prompts).result().failed.tolist() == [False, False, True]
    rows = rows_of(tmp_path / "watch.jsonl")
    assert [row["watch/component/share"] for row in rows] == [0.75, 0.75]
    assert rows[0]["watch/fail_rate"] == pytest.approx(1 / 3)
    copied = pickle.loads(pickle.dumps(watched))
    np.testing.assert_array_equal(copied(texts, prompts=prompts).total, expected.total)


def test_a_run_is_continued(tmp_path) -> None:
    path = tmp_path / "watch.jsonl"
    watch(functions.brevity, path)(completions=["a"] * 2)
    path.write_bytes(path.read_bytes() + b'{"step": 2, "watch')  # killed while it wrote
    watch(functions.brevity, path)(completions=["a"] * 2)
    assert [row["step"] for row in rows_of(path)] == [1, 2]


def test_an_alarm_names_its_statistic(tmp_path, caplog) -> None:
    """A function that pays for length, and completions that become longer."""
    rng = np.random.default_rng(0)

    def pays(prompts: list[str], completions: list[str]) -> list[float]:
        return [len(text) / 100 for text in completions]

    watched = watch(pays, tmp_path / "watch.jsonl")
    words = np.array(["soup", "was", "cold", "good", "the", "view", "and", "fine", "we", "sat"])
    for step in range(30):
        size = 12 if step < 10 else 60
        texts = [" ".join(rng.choice(words, size=size)) for _ in range(16)]
        watched([f"{step} {i // 2}" for i in range(16)], texts)
    (alarm,) = watched.alarms
    assert (alarm.statistic, alarm.step) == ("length", 20)
    assert (alarm.reference, alarm.value) == pytest.approx((12, 60))
    assert len(alarm.example.split()) == 60
    assert alarm.p_value <= 0.05
    assert str(alarm) in caplog.text
    rows = rows_of(tmp_path / "watch.jsonl")
    assert [row["step"] for row in rows if "watch/alarm" in row] == [20]
    assert [row["watch/alarms"] for row in (rows[18], rows[-1])] == [0.0, 1.0]


def test_training_with_trl(train, reward, tmp_path) -> None:
    """The rewards are the function's, and the log of TRL has the statistics."""
    watched = watch(as_reward_funcs(reward, name="letters"), tmp_path / "watch.jsonl")
    trainer = train(watched, per_device_eval_batch_size=8, eval_strategy="steps", eval_steps=3)
    *_, last = (row for row in trainer.state.log_history if "reward" in row)
    # The last completions are the evaluation's.
    rewards = np.array(trainer._logs["rewards"]["letters"])
    np.testing.assert_allclose(rewards, reward(trainer._logs["completion"]).total, rtol=1e-6)
    assert last["watch/reward"] == pytest.approx(last["reward"], rel=1e-5)
    assert last["watch/component/share"] == pytest.approx(last["letters/share"], rel=1e-5)
    assert last["watch/length"] > 0
    rows = rows_of(tmp_path / "watch.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]  # evaluations are not steps
    assert rows[-1]["watch/reward"] == pytest.approx(last["watch/reward"])
    (evaluated,) = (row for row in trainer.state.log_history if "eval_reward" in row)
    assert math.isfinite(evaluated["eval_watch/reward"])


@pytest.mark.parametrize("wrong", [{"level": 5}, {"tolerances": {"size": 1}}])
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        watch(functions.brevity, **wrong)


@pytest.mark.parametrize("wrong", [functions.async_share, [functions.share, functions.brevity]])
def test_what_is_not_one_function(wrong: Any) -> None:
    with pytest.raises(TypeError, match="reward"):
        watch(wrong)
