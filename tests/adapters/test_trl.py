"""Training of a tiny model with TRL 1.16's trainers, and direct calls with their arguments."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from ctrlreward import Reward, Samples
from ctrlreward.adapters.trl import as_async_reward_funcs, as_component_funcs, as_reward_funcs
from ctrlreward.huggingface import RewardCheckpoint
from ctrlreward.runs import read_stored_run
from ctrlreward.samples import parse_conversation
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.text.chats import plain_text


def total_of(text: str) -> float:
    share = text.count("a") / len(text) if text and "f" not in text else math.nan
    return 2.0 * share - 0.125 * len(text)


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


@pytest.mark.parametrize(
    ("algorithm", "build"),
    [("GRPO", as_reward_funcs), ("GRPO", as_async_reward_funcs), ("RLOO", as_reward_funcs)],
)
def test_training_uses_the_total_and_leaves_out_failed_samples(
    train, reward, algorithm: str, build
) -> None:
    functions = build(reward, {"labels": "tone", "prefixes": "prompt"}, name="letters")
    copies = pickle.loads(pickle.dumps(functions))
    trainer = train(copies, algorithm=algorithm)
    assert trainer.state.global_step == 3
    texts = [
        p + c for p, c in zip(trainer._logs["prompt"], trainer._logs["completion"], strict=True)
    ]
    check_last_step(trainer, [total_of(text) for text in texts], texts, "letters")
    columns = trainer._logs["extra"]  # of TRL's table of completions
    assert list(columns["letters/length"]) == [len(text) for text in texts]
    assert [value is None for value in columns["letters/share"]] == ["f" in t for t in texts]


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


def test_grpo_with_chats(train, reward, letters) -> None:
    trainer = train(as_reward_funcs(reward, {"labels": "tone"}), chat=True)
    texts = [completion[0]["content"] for completion in trainer._logs["completion"]]
    check_last_step(trainer, [total_of(text) for text in texts], texts, "reward")
    assert set(letters.scored[0].labels) == {"glad", "sad"}
    assert set(letters.scored[0].prompts) == {"ab", "cd"}


def test_weighted_components_add_up_to_the_total(train, reward) -> None:
    functions, weights = as_component_funcs(reward, {"prefixes": "prompt"})
    assert [function.__name__ for function in functions] == ["share", "length"]
    trainer = train(functions, reward_weights=weights)
    texts = [
        p + c for p, c in zip(trainer._logs["prompt"], trainer._logs["completion"], strict=True)
    ]
    totals = np.array([total_of(text) for text in texts])
    assert np.isnan(totals).any()
    # A failed sample has a length, but it is left out too.
    assert np.isnan(trainer._logs["rewards"]["length"]).tolist() == np.isnan(totals).tolist()
    *_, last = (row for row in trainer.state.log_history if "reward" in row)
    assert last["reward"] == pytest.approx(np.nanmean(totals))
    assert last["share/fail_rate"] == np.isnan(totals).mean()
    assert last["length/fail_rate"] == 0


class Meeting(Scorer):
    """A scorer that returns only while another one is scoring."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"met": ScoreSpec(True, (0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.barrier.wait(timeout=10)
        return {"met": np.ones(len(samples))}


def test_async_rewards_are_scored_concurrently(train) -> None:
    barrier = threading.Barrier(2)
    rewards = [Reward({"met": Meeting(barrier)["met"]}) for _ in range(2)]
    functions = [f for i, r in enumerate(rewards) for f in as_async_reward_funcs(r, name=f"r{i}")]
    trainer = train(functions)
    *_, last = (row for row in trainer.state.log_history if "reward" in row)
    assert (last["rewards/r0/mean"], last["rewards/r1/mean"], last["reward"]) == (1.0, 1.0, 2.0)


def test_component_functions_score_a_batch_once(reward, letters) -> None:
    functions, _ = as_component_funcs(reward)
    for completions in (["ab", "f"], ["aa", "b"]):
        given = {"prompts": ["p", "p"], "completions": completions, "log_metric": None}
        assert [function(**given) for function in functions][1][0] == 2.0
    assert [samples.texts for samples in letters.scored] == [("ab", "f"), ("aa", "b")]


def test_a_failed_sample_is_none(reward) -> None:
    (function,) = as_reward_funcs(reward)
    assert function(prompts=["p"] * 3, completions=["ab", "f", ""]) == [0.75, None, None]


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


def test_error_messages(reward, kinds) -> None:
    with pytest.raises(ValueError, match="'lable' can't be mapped, must be one of"):
        as_reward_funcs(reward, {"lable": "tone"})
    with pytest.raises(ValueError, match=r"'labels' and 'label' are one column. Leave one out"):
        as_reward_funcs(reward, {"labels": "tone", "label": "tone"})
    (function,) = as_reward_funcs(reward, {"labels": "tone"})
    trl_gives = {"trainer_state": None, "log_extra": None, "completion_ids": [[1]]}
    with pytest.raises(
        ValueError, match=r"maps 'labels' to 'tone', but the dataset has prompt, mood\. Use one"
    ):
        function(prompts=["p"], completions=["a"], mood=["glad"], **trl_gives)
    with pytest.raises(TypeError, match=r"labels\[0\] = 0.5 is a float"):
        function(prompts=["p"], completions=["a"], tone=[0.5], **trl_gives)
    for build in (as_reward_funcs, as_async_reward_funcs, as_component_funcs):
        with pytest.raises(TypeError, match="the reward is a str, must be one score of a scorer"):
            build("kinds")
        with pytest.raises(
            TypeError, match=r"columns must be a mapping, \{column of .*, got \['labels'\], a list"
        ):
            build(reward, ["labels"])
    with pytest.raises(ValueError, match="not a weighted sum, and TRL can combine"):
        as_component_funcs(Reward({"kinds": kinds["kinds"]}, lambda scores: scores["kinds"]))


def brevity(completions, prompts, labels, **kwargs):
    assert (prompts, labels) == (["p", "p"], ["1", "2"])
    return [-len(completion) or None for completion in completions]


def test_mistakes_are_named_before_training(letters) -> None:
    for build in (as_reward_funcs, as_async_reward_funcs, as_component_funcs):
        with pytest.raises(ValueError, match="brevity needs the column 'labels' of Samples"):
            build(brevity)
    for name in ("completion_ids", "prompts", "label"):
        function = eval(f"lambda {name}, **kwargs: [1.0]")
        with pytest.raises(TypeError, match=f"the first parameter '{name}', but a function gets"):
            as_reward_funcs(function)
    with pytest.raises(TypeError, match=r"not a number\. Several components are a list"):
        as_reward_funcs((letters["share"], letters["length"]))
    with pytest.raises(TypeError, match="use as_reward_funcs"):
        Reward(letters["share"])(prompts=["p"], completions=["a"])
    (function,) = as_reward_funcs(lambda texts: [torch.tensor(1.0), torch.tensor([2.0])])
    with pytest.raises(TypeError, match=r"for texts\[1\] = 'b', a Tensor, must be a number"):
        function(prompts=["p", "p"], completions=["a", "b"])
    assert function.samples(["p"], [[{"content": "a"}]], {})[1].texts == ("",)  # has no role


def test_what_a_reward_takes_is_a_reward_function(kinds) -> None:
    columns = {"prompts": ["p", "p"], "completions": ["ab", ""], "tone": [1, 2]}
    for given in (brevity, [brevity], {"r": brevity}, Reward(brevity)):
        (function,) = as_reward_funcs(given, {"label": "tone"})
        assert function(**columns) == [-2.0, None]
    (function,) = as_reward_funcs(kinds["kinds"])
    of_reward = Reward(kinds["kinds"])(["ab", "c"], groups="p").total.tolist()
    assert function(["p", "p"], ["ab", "c"]) == of_reward


def test_weights_of_a_reward(letters) -> None:
    given = Reward({"share": letters["share"], "length": (letters["length"], -3.0)})
    assert given.weights == {"share": 1.0, "length": -3.0}


@pytest.mark.parametrize("chat", [False, True])
def test_the_texts_that_trl_stores_are_a_run(train, tmp_path, chat: bool) -> None:
    """Rewards of None are failed; both steps have the same two prompts, in any order."""

    def letters(completions: list[Any], **_: Any) -> list[float | None]:
        texts = [plain_text(each) for each in completions]
        return [None if "f" in text else float(text.count("a")) for text in texts]

    trainer = train([letters], chat=chat, log_completions=True)
    run = read_stored_run(tmp_path)
    assert run.source == "texts of TRL, 3 steps"
    logged = {row["step"]: row for row in trainer.state.log_history if "reward" in row}
    for step in run.steps:
        samples, scores = run.texts["completions"][step.step].read()
        assert np.nanmean(scores["letters"]) == pytest.approx(logged[step.step]["reward"])
        assert samples.prompts in ((*["ab"] * 4, *["cd"] * 4), (*["cd"] * 4, *["ab"] * 4))
        assert step.evidence["completions/letters"].shape == (2,)
        failed = np.isnan(scores["letters"])
        assert failed.tolist() == ["f" in text for text in samples.texts]
        assert step.metrics["completions/fail_rate"] == failed.mean()
    last = [plain_text(each) for each in trainer._logs["completion"]]
    assert sorted(samples.texts) == sorted(last)
