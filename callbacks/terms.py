"""Options of `RewardShaping`: references and length penalties; protocols of modules it shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ctrlreward.arguments import not_negative, positive
from ctrlreward.functional.shaping import preference_over_references, soft_overlong_punishment
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

ShapeRewards = Callable[[Samples, RewardBatch, Tensor], Scores]


@runtime_checkable
class ShapedModule(Protocol):
    """A LightningModule whose rewards can be shaped.

    `RewardShaping` sets `shape_rewards`, else None. The module then computes advantages from
    `shape_rewards(samples, scored, lengths)`, in one call per step: float64, shape (n,), NaN if a
    sample failed. `lengths` are in tokens, shape (n,).
    """

    reward: Reward
    shape_rewards: ShapeRewards | None


@runtime_checkable
class ReferredModule(Protocol):
    """A LightningModule with a reference policy: the one that training starts from, or the base."""

    reward: Reward

    def complete_as_reference(self, prompts: Sequence[str]) -> list[str]:
        """Return a completion of each prompt by the reference policy."""


@dataclass(frozen=True)
class ReferenceReward:
    """Bounded reward: the preference for a text over the reference policy's for the same prompt.

    σ((r − r_ref) / scale), in (0, 1) (PAR, Fu et al. 2025, https://arxiv.org/abs/2502.18770).
    The reference policy completes each prompt once a step, at the `eval_temperature`.

    Args:
        scale: Difference of rewards that counts as one, > 0: the larger, the later it flattens.
            The paper's is 1, for reward models; the GM, up to 40, needs about 10.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def preferences(
        self, rewards: Scores, samples: Samples, module: ReferredModule
    ) -> tuple[Scores, Scores]:
        """Return the bounded reward and the reward of the module's references, both (n,)."""
        prompts = samples.require("prompts", "ReferenceReward")
        prefixes = samples.require("prefixes", "ReferenceReward")
        distinct = list(dict.fromkeys(prompts))
        completions = dict(zip(distinct, module.complete_as_reference(distinct), strict=True))
        texts = [p + completions[prompt] for p, prompt in zip(prefixes, prompts, strict=True)]
        # Completions of one prompt share their reference.
        references, inverse = samples.replace(texts=texts).distinct()
        values = module.reward(references).total[inverse]
        return preference_over_references(rewards, values[:, None], self.scale), values


@dataclass(frozen=True)
class SoftOverlong:
    """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), times `weight`.

    Args:
        longest: Length from which the full penalty applies, in tokens; usually the policy's
            `max_completion_length`.
        cache: Number of tokens before `longest` over which the penalty grows linearly from 0.
        weight: The full penalty, in units of the reward, ≥ 0.

    Examples:
        >>> import numpy as np
        >>> SoftOverlong(longest=64, cache=16).term(np.array([40.0, 56.0, 64.0])).tolist()
        [0.0, -0.5, -1.0]
    """

    longest: int
    cache: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.cache <= self.longest:
            raise ValueError(f"cache must be 1 to longest = {self.longest}, got {self.cache}")
        not_negative("weight", self.weight)

    def term(self, lengths: Scores) -> Scores:
        """Return the term of each length, in [-weight, 0], shape (n,)."""
        return self.weight * soft_overlong_punishment(lengths, self.longest, self.cache)
