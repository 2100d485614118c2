"""Training of a tiny model with TRL 1.16's trainers, and direct calls with their arguments."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from trl.rewards import (
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
)

from ctrlreward import Reward, Similarity, WordVectors
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.failures import ItemError
from ctrlreward.huggingface import RewardCheckpoint
from ctrlreward.samples import parse_conversation


def total_of(text: str) -> float:
    share = text.count("a") / len(text) if text and "f" not in text else math.nan
    return 2.0 * share - 0.125 * len(text)


def texts_of(trainer: Any, chat: bool = False) -> list[str]:
    """The texts of the last step: completions of chats, else prompt + completion."""
    completions = trainer._logs["completion"]
    if chat:
        return [completion[0]["content"] for completion in completions]
    return [p + c for p, c in zip(trainer._logs["prompt"], completions, strict=True)]


def check_last_step(trainer: Any, totals: list[float], texts: list[str], name: str) -> None:
    """Check the rewards, advantages and log of the last step."""
    given = trainer._logs["rewards"][name]
    assert list(given) == pytest.approx(totals, nan_ok=True)
    failed = np.isnan(totals)
    assert failed.any(), "the seed produced no failed sample"
    assert not failed.all()
    advantages = np.array(trainer._logs["advantages"])
    assert (advantages[failed] == 0).all()
    assert (advantages[~failed] != 0).any()
    *_, last = (row for row in trainer.state.log_history if "reward" in row)
    valid = [text for text, out in zip(texts, failed, strict=True) if not out]
    assert last[f"rewards/{name}/mean"] == pytest.approx(np.mean([total_of(t) for t in valid]))
    assert last["reward"] == pytest.approx(last[f"rewards/{name}/mean"])
    assert last[f"{name}/fail_rate"] == failed.mean()
    assert last[f"{name}/length"] == pytest.approx(np.mean([len(text) for text in valid]))


@pytest.mark.parametrize(("algorithm", "chat"), [("GRPO", False), ("RLOO", False), ("GRPO", True)])
def test_training_uses_the_total_and_leaves_out_failed_samples(
    train, reward, letters, algorithm, chat
) -> None:
    columns = {"labels": "tone"} if chat else {"labels": "tone", "prefixes": "prompt"}
    functions = as_reward_funcs(reward, columns, name="letters")
    copies = functions if chat else pickle.loads(pickle.dumps(functions))
    trainer = train(copies, chat=chat, algorithm=algorithm)
    assert trainer.state.global_step == 3
    texts = texts_of(trainer, chat)
    check_last_step(trainer, [total_of(text) for text in texts], texts, "letters")
    logged = trainer._logs["extra"]  # of TRL's table of completions
    assert list(logged["letters/length"]) == [len(text) for text in texts]
    assert [value is None for value in logged["letters/share"]] == ["f" in t for t in texts]
    if chat:
        assert set(letters.scored[0].labels) == {"glad", "sad"}
        assert set(letters.scored[0].prompts) == {"ab", "cd"}


def test_trls_own_rewards_are_components(train) -> None:
    """Their values in our log are those of direct calls, in each of five steps."""
    functions = {
        "repetition": get_repetition_penalty_reward(ngram_size=1),
        "cosine": get_cosine_scaled_reward(max_len=4),
        "overlong": get_soft_overlong_punishment(4, 3),
    }
    calls: list[dict[str, list[float]]] = []

    def easy(texts: list[str], gold: list[str]) -> list[float]:
        return [float(each) for each in gold]

    def direct(completions: Any, completion_ids: Any, gold: list[str], **_: Any) -> list[float]:
        asked = {"completions": completions, "completion_ids": completion_ids, "solution": gold}
        calls.append({name: function(**asked) for name, function in functions.items()})
        calls[-1]["easy"] = easy([], gold)
        return [0.0] * len(completions)

    ours = as_reward_funcs({**functions, "easy": easy}, {"references": "gold"}, name="ours")
    trainer = train([ours, direct], chat=True, max_steps=5)
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == len(calls) == 5
    for row, call in zip(rows, calls, strict=True):
        for name, values in call.items():
            assert row[f"ours/{name}"] == pytest.approx(np.mean(values))
        assert row["rewards/ours/mean"] == pytest.approx(np.sum([*call.values()], axis=0).mean())
        assert row["ours/fail_rate"] == 0
    for name, values in calls[-1].items():
        assert len({value for call in calls for value in call[name]}) > 1
        assert list(trainer._logs["extra"][f"ours/{name}"]) == values


def test_one_function_a_component(train) -> None:
    """As for GDPO: each is normalised by itself, and logs its share of groups without signal."""

    def right(prompts: list[str], completions: list[str]) -> list[float]:
        return [float(p == "ab" and i % 2 == 0) for i, p in enumerate(prompts)]

    def long(texts: list[str]) -> list[float]:
        return [0.1 * i for i in range(len(texts))]

    reward = Reward({"right": right, "long": (long, 0.5)})
    parts = [as_reward_funcs(part, name=name) for name, part in reward.components.items()]
    trainer = train(
        parts,
        reward_weights=[*reward.weights.values()],
        multi_objective_aggregation="normalize_then_sum",
    )
    table = {name: np.array(values) for name, values in trainer._logs["rewards"].items()}
    assert table["long"] == pytest.approx(0.1 * np.arange(8))
    *_, last = (row for row in trainer.state.log_history if "reward" in row)
    assert last["reward"] == pytest.approx((table["right"] + 0.5 * table["long"]).mean())
    assert (last["right/zero_signal"], last["long/zero_signal"]) == (0.5, 0.0)


def test_decisions_on_the_metrics_of_trls_own_evaluation(train, reward, letters) -> None:
    """Without another generation: the keys are TRL's means over the completions that it scored."""
    best = RewardCheckpoint(
        "eval_letters/share", "max", constraints={"eval_letters/length": (0, 9)}
    )
    every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    functions = as_reward_funcs(reward, {"prefixes": "prompt"}, name="letters")
    trainer = train(functions, callbacks=[best], per_device_eval_batch_size=8, **every)
    log = trainer.state.log_history
    shares = {row["step"]: row["eval_letters/share"] for row in log if "eval_letters/share" in row}
    assert list(shares) == [1, 2, 3]
    assert best.selected_step == max(shares, key=lambda step: shares[step])
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best.selected_step}")
    texts = [[t for t in samples.texts if "f" not in t] for samples in letters.scored[1::2]]
    expected = [np.mean([t.count("a") / len(t) for t in each]) for each in texts]
    assert list(shares.values()) == pytest.approx(expected)


def test_a_list_has_the_reward_and_other_functions(train, reward) -> None:
    def mine(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(each)) for each in completions]

    trainer = train([as_reward_funcs(reward, {"prefixes": "prompt"}, name="letters"), mine])
    totals, lengths = (list(trainer._logs["rewards"][name]) for name in ("letters", "mine"))
    assert totals == pytest.approx([total_of(text) for text in texts_of(trainer)], nan_ok=True)
    assert lengths == [len(each) for each in trainer._logs["completion"]]


SIMILARITY = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["soup", None], [0.6, None]),
        ([None, "soup"], [None, 1.0]),
        ([float("nan"), None], [None, None]),
        (["soup", "soup"], [0.6, 1.0]),
    ],
)
def test_a_row_without_a_value_has_no_reward(column: list[Any], expected: list[Any]) -> None:
    texts, columns = ["broth", "soup"], {"sources": "original"}
    (plain,) = as_reward_funcs(SIMILARITY, columns)
    assert plain(["p"] * 2, texts, original=column) == expected


def test_samples_of_one_prompt_form_a_group(reward, letters) -> None:
    (function,) = as_reward_funcs(reward, {"prefixes": "start"})
    function(prompts=["p", "q", "p"], completions=["a", "b", "c"], start=["b", "", "b"])
    (samples,) = letters.scored
    assert samples.columns() == {
        "texts": ("ba", "b", "bc"),
        "prefixes": ("b", "", "b"),
        "prompts": ("p", "q", "p"),
        "groups": ("p", "q", "p"),
    }


def test_only_assistant_messages_of_a_chat_are_scored(reward, letters) -> None:
    completion = [
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]},
        {"role": "tool", "content": "bbb"},
        {"role": "assistant", "content": [{"type": "text", "text": "ac"}, {"type": "image"}]},
        {"role": "assistant", "content": "d"},
    ]
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (function,) = as_reward_funcs(reward)
    function(prompts=[prompt], completions=[completion])
    assert letters.scored[0].texts == ("ac\nd",)
    assert parse_conversation(letters.scored[0].prompts[0]) == prompt  # for reward models
    function(prompts=[prompt[1:]], completions=[completion])
    assert letters.scored[1].prompts == ("u",)
    seen: list[str] = []
    (plain,) = as_reward_funcs(
        Reward({"own": lambda prompts, completions: seen.extend(prompts) or [0.0]})
    )
    plain(prompts=[prompt], completions=[completion])
    assert seen == ["s\nu"]


def brevity(completions, prompts, labels, **kwargs):
    assert (prompts, labels) == (["p", "p"], ["1", "2"])
    return [-len(completion) or None for completion in completions]


def test_wrong_columns_are_named(reward) -> None:
    for wrong, named in (({"lable": "tone"}, "lable"), ({"labels": "a", "label": "b"}, "labels")):
        with pytest.raises(ValueError, match=named):
            as_reward_funcs(reward, wrong)
    with pytest.raises(ValueError, match="labels"):
        as_reward_funcs(brevity)
    (function,) = as_reward_funcs(reward, {"labels": "tone"})
    with pytest.raises(ValueError, match="tone"):
        function(prompts=["p"], completions=["a"], mood=["glad"])
    with pytest.raises(ItemError, match="labels"):
        function(prompts=["p"], completions=["a"], tone=[0.5])


def test_what_a_reward_takes_is_a_reward_function(kinds) -> None:
    columns = {"prompts": ["p", "p"], "completions": ["ab", ""], "tone": [1, 2]}
    for given in (brevity, [brevity], {"r": brevity}, Reward(brevity)):
        (function,) = as_reward_funcs(given, {"label": "tone"})
        assert function(**columns) == [-2.0, None]
    (function,) = as_reward_funcs(kinds["kinds"])
    of_reward = Reward(kinds["kinds"])(["ab", "c"], groups="p").total.tolist()
    assert function(["p", "p"], ["ab", "c"]) == of_reward
