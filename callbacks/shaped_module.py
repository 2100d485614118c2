"""Interfaces of a LightningModule for `RewardShaping`: shaped rewards, and an adapted KL term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

ShapeRewards = Callable[[Samples, RewardBatch, Tensor, bool], Scores]


@runtime_checkable
class ShapedModule(Protocol):
    """A LightningModule whose rewards can be shaped.

    Attributes:
        reward: The `Reward` that scores the samples.
        shape_rewards: None, or a function that `RewardShaping` sets. The module then calls
            `shape_rewards(samples, scored, lengths, baseline)` and computes advantages from what
            it returns: the shaped rewards, float64, shape (n,), NaN where a sample failed.
            `lengths` are those of the completions in tokens, shape (n,). `baseline` is False for
            the samples to learn from, in one call per step, and True for samples that only serve
            as a baseline, such as greedy completions: these are shaped in the same way, but
            neither logged nor counted in the running statistics.
    """

    reward: Reward
    shape_rewards: ShapeRewards | None


@runtime_checkable
class KLWeighted(Protocol):
    """A LightningModule whose KL term can be adapted to a target.

    It has to log `policy/kl` in each training step.

    Attributes:
        beta: Weight of the KL term in the loss.
    """

    beta: float
