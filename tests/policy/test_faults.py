"""Rewards and losses that would ruin a policy."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import torch
from thinned import thinned
from tuner_records import ALGORITHMS, drift, learned, logged, trained_weights

from ctrlreward import Samples

PROMPTS = Samples(texts=["a", "fb", "c"]).as_prompts()


@pytest.mark.parametrize(
    ("algorithm", "value"), thinned(ALGORITHMS, [1e300, -1e300, np.inf, np.nan, None])
)
def test_an_extreme_reward_is_a_failed_sample(tuner, algorithm, value, monkeypatch) -> None:
    """Its advantage is 0, and others have one."""

    def odd(texts: list[str]) -> list[float | None]:
        return [value if i == 1 else float(i % 3) for i in range(len(texts))]

    module = tuner(reward=odd, algorithm=algorithm)
    values, experiences = logged(module), learned(monkeypatch)
    assert torch.isfinite(module.training_step(PROMPTS, 0))
    _, last = module.last_rollout
    assert last.failed.tolist() == [False, True, *[False] * 10]
    assert values["reward/total"] == pytest.approx(np.mean([0, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]))
    assert values["reward/fail_rate"] == pytest.approx(1 / 12)
    (advantages,) = experiences
    assert advantages.isfinite().all()
    assert (advantages[1].abs().max(), advantages.abs().max() > 0) == (0, True)


def test_the_size_of_a_reward_changes_no_normalised_advantage(tuner) -> None:
    """Their squares are beyond float32: advantages were 0, and nothing was learned."""
    found = []
    for factor in (1.0, 1e38):
        torch.manual_seed(0)
        module = tuner(reward=lambda texts, f=factor: [f * t.count("a") for t in texts])
        module.configure_model()
        module.training_step(PROMPTS, 0).backward()
        gradients = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
        found.append(torch.cat(gradients))
    assert found[0].any()
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=2e-5)


def test_a_loss_that_is_not_finite_updates_nothing(tuner, fit) -> None:
    huge = lambda texts: [3e38 * (i % 2) for i in range(len(texts))]  # noqa: E731
    module = tuner(reward=huge, algorithm="rloo", beta=1e38)
    module.configure_model()
    drift(module, 0)
    before = trained_weights(module)
    with pytest.raises(RuntimeError, match="not finite"):
        fit(module, 2)
    torch.testing.assert_close(trained_weights(module), before, rtol=0, atol=0)


def test_a_constant_reward_teaches_nothing_and_this_is_said_once(tuner, fit) -> None:
    module = tuner(reward=lambda texts: [0.7e9] * len(texts), beta=0.0)
    module.configure_model()
    before = trained_weights(module)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = fit(module, 7)
    assert sum("all advantages of 3 steps" in str(w.message) for w in said) == 1
    assert trainer.callback_metrics["reward/zero_signal"] == 1
    assert trainer.callback_metrics["policy/loss"] == 0
    torch.testing.assert_close(trained_weights(module), before, rtol=0, atol=1e-7)


def test_an_error_of_the_reward_ends_its_thread_and_frees_its_models(tuner, fit, share) -> None:
    def fails(texts: list[str]) -> list[float]:
        raise OSError("no scores")

    with pytest.raises(OSError, match="no scores"):
        fit(tuner(reward={"share": share["share"], "fails": fails}), 2)
    assert share.releases == 1
    assert not any(each.name.startswith("ctrlreward") for each in threading.enumerate())
