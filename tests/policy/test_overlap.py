"""Scoring a rollout while the policy learns from the previous one."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_choice import MisconfigurationException, PolicyTuner, pl, quiet_trainer
from torch.utils.data import DataLoader
from tuner_records import learned

from ctrlreward import Reward, Samples
from ctrlreward.policy.rollouts import log_probs
from ctrlreward.scorers.base import Scores

BATCHES = [Samples(texts) for texts in (["ab", "ba"], ["cd", "dc"], ["ef", "fe"], ["ac", "ca"])]


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("ctrlreward")}


def fit(module: PolicyTuner, batches: list[Samples] = BATCHES) -> pl.Trainer:
    pl.seed_everything(0, verbose=False)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return trainer


@pytest.mark.lightning
def test_each_rollout_is_learned_from_a_step_later(tuner, share) -> None:
    before = workers()
    module = tuner(overlap=True)
    experiences = learned(module)
    trainer = fit(module)
    assert trainer.global_step == len(experiences) == 3
    scored = [set(samples.prefixes) for samples in share.scored]
    # Nothing is learned from the last rollout: it is dropped if its scoring has not started.
    assert scored in ([set(b.texts) for b in BATCHES], [set(b.texts) for b in BATCHES[:-1]])
    assert set(module.last_rollout[0].prefixes) == {"ef", "fe"}
    assert module._waiting is None
    assert workers() <= before


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_ratio_is_to_the_policy_that_sampled(tuner, algorithm: str) -> None:
    """The old log-probabilities are computed before the update on the previous rollout."""
    module = tuner(overlap=True, algorithm=algorithm, learning_rate=0.05, warmup_steps=0)
    experiences = learned(module)
    start, by_sampler = module._start, []

    def starting(*arguments: Any):
        started = start(*arguments)
        with torch.no_grad():
            by_sampler.append(log_probs(module.policy, started.rollout, 1.0))
        return started

    module._start = starting
    trainer = fit(module)
    for experience, expected in zip(experiences, by_sampler, strict=False):
        torch.testing.assert_close(experience.old, expected)
    # From the second update on, the policy has moved since it wrote.
    assert float(trainer.callback_metrics["policy/update_kl"]) > 1e-4


def test_scoring_runs_while_the_policy_learns(tuner, share) -> None:
    """The second rollout is scored only after learning from the first has started."""
    learning, score = threading.Event(), share.score_samples
    waited: list[bool] = []

    def waits(samples: Samples) -> dict[str, Scores]:
        if "cd" in samples.prefixes:
            waited.append(learning.wait(timeout=60))
        return score(samples)

    share.score_samples = waits
    module = tuner(overlap=True)
    learn = module._learn
    module._learn = lambda e: learning.set() or learn(e)
    fit(module)
    assert waited == [True]


def test_random_numbers_are_those_of_a_serial_run(tuner, share) -> None:
    """Although the reward loads its models before training."""
    texts = {}
    for overlap in (False, True):
        share.scored.clear()
        share.load = lambda: torch.rand(7)
        fit(tuner(overlap=overlap), BATCHES[:2])
        texts[overlap] = [samples.texts for samples in share.scored]
    assert texts[True][0] == texts[False][0]


def test_a_scorers_exception_is_raised_a_step_later(tuner, share) -> None:
    before = workers()
    score = share.score_samples

    def fails(samples: Samples) -> dict[str, Scores]:
        if "cd" in samples.prefixes:
            raise ValueError("no scores")
        return score(samples)

    share.score_samples = fails
    module = tuner(overlap=True)
    with pytest.raises(ValueError, match="no scores"):
        fit(module)
    assert module.trainer.global_step == 1
    assert workers() <= before


def test_an_exception_leaves_no_worker_behind(tuner, share) -> None:
    before = workers()
    module = tuner()
    module._learn = lambda experience: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fit(module)
    assert workers() <= before
    assert share.releases == 1


def test_a_reward_on_one_of_several_training_devices_is_refused(tuner, share, monkeypatch) -> None:
    share.device = "cuda:1"
    module = tuner(reward=Reward({"share": share["share"]}))

    trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("cuda", 0)),
        device_ids=[0, 1],
        world_size=2,
        precision="32-true",
    )
    monkeypatch.setattr(type(module), "trainer", trainer)
    with pytest.raises(MisconfigurationException, match="component 'share', runs on 'cuda:1'"):
        module.setup("fit")
