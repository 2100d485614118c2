"""PPO with rewards by token (`Objective(credit="token")`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import Critic, OptimizerConfig, PolicyTuner
from tuner_records import learned

from ctrlreward import Reward, Samples
from ctrlreward.policy.rollouts import Rollout, completion_offsets, sample
from ctrlreward.scorers.base import NO_CREDIT, Credit, Scorer, Scores, ScoreSpec


class Letters(Scorer):
    """Share of the letter a in the text after the prefix, by letter."""

    specs = {"share": ScoreSpec(True, (0.0, 1.0))}  # noqa: RUF012
    credited = ("share",)

    def credit_samples(self, samples: Samples, names: Collection[str]) -> dict[str, list[Credit]]:
        credits = []
        for text, prefix in zip(samples.texts, samples.require("prefixes", "Letters"), strict=True):
            ends = np.arange(len(prefix), len(text)) + 1
            values = np.array([letter == "a" for letter in text[len(prefix) :]]) / max(1, len(ends))
            credits.append(Credit(ends, values) if len(ends) else NO_CREDIT)
        return {"share": credits}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        each = self.credit_samples(samples, ["share"])["share"]
        return {"share": np.array([credit.values.sum() for credit in each])}


@pytest.fixture
def ppo(tuner: Callable[..., PolicyTuner]) -> Callable[..., PolicyTuner]:
    """Return a function that builds a module which gives rewards by token."""
    return lambda **options: tuner(
        **{"algorithm": "ppo", "credit": "token", "reward": Letters(), "beta": 0.0, **options}
    )


def experience_of(module: PolicyTuner) -> Any:
    experiences = learned(module)
    module.configure_model()
    torch.manual_seed(0)
    module.training_step(Samples(["ab", "cd", "f"]), 0)
    return experiences[0]


def later_rewards(experience: Any, rewards: np.ndarray) -> list[list[float]]:
    """Sum the rewards from each token on; a letter is a token, and the end has none."""
    rows = []
    for i, completion in enumerate(experience.rollout.completions):
        length = int(experience.mask[i].sum())
        each = [float(letter == "a") / max(1, len(completion)) for letter in completion]
        each += [0.0] * (length - len(completion))
        each[-1] += rewards[i] - sum(each)
        rows.append([sum(each[t:]) for t in range(length)])
    return rows


@pytest.mark.lightning
def test_a_token_is_credited_with_what_comes_from_it_on(ppo) -> None:
    """With λ = 1 and values of 0, as at first, the advantages are these sums."""
    module = ppo(critic=Critic(gae_lambda=1.0), scale="none", max_completion_length=5)
    experience = experience_of(module)
    scored = module.last_rollout[1]
    assert 0 < scored.failed.sum() < 12
    for i, row in enumerate(later_rewards(experience, scored.total)):
        got = experience.advantages[i, : len(row)].tolist()
        assert got == pytest.approx([0.0] * len(row) if scored.failed[i] else row, abs=1e-6)
        assert (experience.advantages[i, len(row) :] == 0).all()
    # At the end it would be the same at each token of a completion.
    kept = experience.mask.bool() & ~torch.from_numpy(scored.failed)[:, None]
    first = experience.advantages[:, :1].expand_as(kept)
    assert (experience.advantages[kept] - first[kept]).abs().max() > 0.3
    torch.testing.assert_close(first[:, 0], torch.from_numpy(scored.total).nan_to_num().float())


def test_what_shaping_adds_is_given_at_the_end(ppo) -> None:
    module = ppo(critic=Critic(gae_lambda=1.0), scale="none")
    module.shape_rewards = lambda samples, scored, lengths, baseline: scored.total - 0.5
    experience = experience_of(module)
    scored = module.last_rollout[1]
    for i, row in enumerate(later_rewards(experience, scored.total - 0.5)):
        if not scored.failed[i]:
            got = experience.advantages[i, : len(row)].tolist()
            assert got == pytest.approx(row, abs=1e-6)


# Characters of a policy's tokens


def test_each_letter_is_a_token_and_the_end_has_no_character(tuner) -> None:
    module = tuner()
    module.configure_model()
    torch.manual_seed(0)
    rollout = module._sample(["ab"] * 20)
    assert 0 < rollout.ended.sum() < 20
    for i, row in enumerate(completion_offsets(module.tokenizer, rollout, [3] * 20)):
        if (rollout.ids[i, 2:] == module.tokenizer.unk_token_id).any():
            continue  # has no character either
        length = len(rollout.completions[i])
        assert row[:length] == [(3 + t, 4 + t) for t in range(length)]
        assert row[length:] == [(3 + length, 3 + length)] * int(rollout.ended[i])
        assert len(row) == rollout.mask[i].sum()


@pytest.mark.parametrize("family", ["causal", "t5"])
def test_the_characters_of_tokens_cover_a_text(tuner, tiny_causal, tiny_seq2seq, family) -> None:
    """The last byte of a character has it: a random policy writes many that are no character."""
    folder = tiny_causal("llama") if family == "causal" else tiny_seq2seq("t5")
    module = tuner(model=folder, max_completion_length=12)
    module.configure_model()
    torch.manual_seed(0)
    rollout = module._sample(["ab"] * 8)
    if family == "causal":
        ids = module.tokenizer("né 🙂 so", add_special_tokens=False).input_ids
        assert len(ids) > 6
        rollout.ids[0, -12 : -12 + len(ids)] = torch.tensor(ids)
        rollout.mask[0], rollout.ended[0] = 0, False
        rollout.mask[0, : len(ids)] = 1
        rollout.completions[0] = "né 🙂 so"
    for i, row in enumerate(completion_offsets(module.tokenizer, rollout, [0] * 8)):
        text = rollout.completions[i]
        assert len(row) == rollout.mask[i].sum()
        assert row[0][0] == 0
        assert row[-1][1] == len(text)
        assert all(start <= end for start, end in row)
        assert "".join(text[start:end] for start, end in row) == text
    if family == "causal":
        row = completion_offsets(module.tokenizer, rollout, [0] * 8)[0]
        pieces = ["né 🙂 so"[start:end] for start, end in row]
        assert [p for p in pieces if "🙂" in p] == ["🙂"]
        assert pieces.count("") >= 4  # bytes before the last of é and of the face


def test_a_token_has_the_space_that_a_prefix_shares_with_it(
    tuner, tiny_causal, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = Letters()
    module = tuner(
        model=tiny_causal("llama"), algorithm="ppo", credit="token", reward=reward, beta=0.0
    )
    asked = []

    def spaced(*given: Any, **options: Any) -> Rollout:
        rollout = sample(*given, **options)
        return replace(rollout, completions=[f" {text}" for text in rollout.completions])

    def offsets(tokenizer: Any, rollout: Rollout, starts: list[int]) -> Any:
        asked.append((rollout.completions, starts))
        return completion_offsets(tokenizer, rollout, starts)

    monkeypatch.setattr("ctrlreward.policy.adapted_module.sample", spaced)
    monkeypatch.setattr("ctrlreward.policy.tuner.completion_offsets", offsets)
    module.training_step(Samples(["The food "]), 0)
    ((completions, starts),) = asked
    texts = [f"The food{completion}" for completion in completions]
    assert module.last_rollout[0].texts == (*texts,)
    found = [text[start:] for text, start in zip(texts, starts, strict=True)]
    assert found == completions


# Refused


def test_a_reward_that_is_not_split_and_overlap(tuner, share, ppo) -> None:
    with pytest.raises(ValueError, match=r"no component of the reward \(share\) can be given by t"):
        tuner(algorithm="ppo", credit="token")
    lowest = Reward({"a": Letters(), "b": share["share"]}, aggregate="min")
    with pytest.raises(ValueError, match="has another aggregate, must be 'weighted'"):
        ppo(reward=lowest)
    with pytest.raises(ValueError, match=r"takes no optimizer.overlap = True"):
        ppo(optimizer=OptimizerConfig(overlap=True))
