"""Rollouts whose rewards are on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ctrlreward.policy.reading import Reading
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import Samples


@dataclass(frozen=True)
class Written:
    """Completions that are being scored.

    Attributes:
        samples: The texts, with all columns; n of them.
        rollout: The completions' tokens.
        scored: Gives their rewards, or raises what a scorer raised.
        seconds: How long the writing took.
    """

    samples: Samples
    rollout: Rollout
    scored: Callable[[], RewardBatch]
    seconds: float


@dataclass(frozen=True)
class Collected:
    """What is there of a step's experience before its rewards are.

    Attributes:
        written: What will be learned from.
        likeliest: Each prompt's greedy completion, where that is the baseline.
        reading: By the policy that wrote; None where the policy will still be that one.
    """

    written: Written
    likeliest: Written | None
    reading: Reading | None
