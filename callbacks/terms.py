"""Options of `RewardShaping`: schedules, references, potentials, length penalties; and the
protocols of modules that it shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from ctrlreward.arguments import not_negative, one_of, positive
from ctrlreward.functional.means import valid_row_means
from ctrlreward.functional.shaping import (
    distance_outside,
    piecewise_linear,
    potential_difference,
    preference_over_references,
    soft_overlong_punishment,
)
from ctrlreward.reward import Reward, RewardBatch, check_direction
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score
from ctrlreward.scorers.components import ComponentLike, as_component

ShapeRewards = Callable[[Samples, RewardBatch, Tensor, bool], Scores]


@runtime_checkable
class ShapedModule(Protocol):
    """A LightningModule whose rewards can be shaped.

    `shape_rewards` is None, or a function that `RewardShaping` sets. The module then computes
    advantages from `shape_rewards(samples, scored, lengths, baseline)`, float64, shape (n,), NaN if
    a sample failed. `lengths` are in tokens, shape (n,). `baseline` is False for the samples to
    learn from, in one call per step, and True for samples that only serve as a baseline, such as
    greedy completions: these are neither logged nor counted in the running statistics.
    """

    reward: Reward
    shape_rewards: ShapeRewards | None


@runtime_checkable
class KLWeighted(Protocol):
    """A LightningModule that logs `policy/kl`, with the weight of the KL term, `beta`."""

    beta: float


@runtime_checkable
class ReferredModule(Protocol):
    """A LightningModule with a reference policy: the one that training starts from, or the base."""

    def complete_as_reference(self, prompts: Sequence[str]) -> list[str]:
        """Return a completion of each prompt by the reference policy."""


@dataclass(frozen=True)
class WeightSchedules:
    """Piecewise linear weights of components: pairs of step and weight by increasing step."""

    points: Mapping[str, Sequence[tuple[int, float]]]

    def __post_init__(self) -> None:
        for name, points in self.points.items():
            try:
                steps = [step for step, _ in points]
            except (TypeError, ValueError):
                steps = []
            if not steps or any(after <= step for step, after in pairwise(steps)):
                raise ValueError(
                    f"weights[{name!r}] must be pairs of step and weight, by increasing step, got "
                    f"{points}"
                )

    def check(self, reward: Reward) -> None:
        """Raise if the schedules do not fit the reward."""
        for name, points in self.points.items():
            one_of("a key of weights", name, reward.components)
            if reward.weights is None:
                raise ValueError(
                    f"weights[{name!r}] schedules a weight, but the reward is not a weighted sum. "
                    "Build it with aggregate='weighted', or leave the schedules out."
                )
            for _, weight in points:
                check_direction(name, reward.components[name], weight)

    def at(self, step: int) -> dict[str, float]:
        """Return the weight of each component at a step."""
        return {name: piecewise_linear(step, points) for name, points in self.points.items()}


@dataclass(frozen=True)
class ReferenceReward:
    """Bounded reward: the preference for a text over references for the same prompt.

    σ((r − r_ref) / scale), in (0, 1), the mean over several references (PAR, Fu et al. 2025,
    https://arxiv.org/abs/2502.18770).

    Args:
        texts: `"policy"`: a completion of the prompt, as a string, by the reference policy, at the
            `eval_temperature`. `"references"`: the texts of that column, such as completions of the
            policy before training. `"sources"`, `"prefixes"`: the text that was
            rewritten or completed.
        scale: Difference of rewards that counts as one, > 0: the larger, the later it flattens.
            The paper's is 1, for reward models; the GM, up to 40, needs about 10.

    Raises:
        ValueError: `scale` is not positive.

    Examples:
        >>> ReferenceReward("references", scale=10.0)
        ReferenceReward(texts='references', scale=10.0)
    """

    texts: Literal["policy", "references", "sources", "prefixes"] = "policy"
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def preferences(
        self,
        rewards: Scores,
        samples: Samples,
        total: Callable[[Samples], Scores],
        complete: Callable[[Sequence[str]], list[str]] | None = None,
    ) -> tuple[Scores, Scores]:
        """Return the bounded reward and the reward of the references, both of shape (n,).

        `total` scores samples, `complete` completes prompts with the reference policy.
        """
        references = self._references(samples, complete)
        rows = [i for i, texts in enumerate(references) for _ in texts]
        prefixes = samples.prefixes or [""] * len(samples)
        texts = [text for each in references for text in each]
        begun = [
            prefixes[i] if t.startswith(prefixes[i]) else ""
            for i, t in zip(rows, texts, strict=True)
        ]
        scored = samples[rows].replace(texts=texts, prefixes=begun)
        # Completions of one prompt share their references.
        distinct: dict[tuple[object, ...], int] = {}
        inverse = [
            distinct.setdefault(key, len(distinct))
            for key in zip(*scored.columns().values(), strict=True)
        ]
        first = np.unique(inverse, return_index=True)[1].tolist()
        values = total(scored[first])[inverse]
        table = np.full((len(samples), max(map(len, references))), np.nan)
        place = [j for each in references for j in range(len(each))]
        table[rows, place] = values
        return preference_over_references(rewards, table, self.scale), valid_row_means(table)

    def _references(
        self, samples: Samples, complete: Callable[[Sequence[str]], list[str]] | None
    ) -> Sequence[Sequence[str]]:
        if self.texts == "references":
            return samples.require_references("ReferenceReward")
        if complete is None:
            return [[text] for text in samples.require(self.texts, "ReferenceReward")]
        prompts = samples.require("prompts", "ReferenceReward")
        distinct = list(dict.fromkeys(prompts))
        completions = dict(zip(distinct, complete(distinct), strict=True))
        prefixes = samples.require("prefixes", "ReferenceReward")
        return [[p + completions[prompt]] for p, prompt in zip(prefixes, prompts, strict=True)]


@dataclass(frozen=True)
class Potential:
    """Potential-based shaping term: weight · (γ · Φ(text) − Φ(start)).

    `discount` = 1 rewards the improvement over the start; 0 subtracts the potential of the start, a
    baseline that changes no optimum (`ctrlreward.functional.shaping.potential_difference`).

    Args:
        component: Φ, one score of a scorer: `scorer["similarity"]`, or a scorer with a single one.
        weight: Factor of the term; positive for a score that is better when higher, else negative.
        discount: γ, in [0, 1].
        start: `"prefixes"`, the prefix that was completed, or `"sources"`, the text that was
            rewritten. Φ scores it in place of the text; if that fails, the sample fails.

    Raises:
        ValueError: A discount out of range, or a weight that rewards the worse direction.

    Examples:
        >>> from ctrlreward import Samples, Similarity, WordVectors
        >>> words = WordVectors({"soup": [1, 0], "noodles": [2, 4], "broth": [3, 4]})
        >>> samples = Samples(["soup noodles"], prefixes=["soup"], sources=["broth"])
        >>> Potential(Similarity(words)).term(samples)  # 1.0 for the text, 0.6 for its prefix
        array([0.4])
    """

    component: ComponentLike
    weight: float = 1.0
    discount: float = 1.0
    start: Literal["prefixes", "sources"] = "prefixes"

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], got {self.discount}")
        check_direction(self.phi.name, self.phi, self.weight)

    @property
    def phi(self) -> Component:
        """Φ."""
        return as_component("component", self.component)

    def term(self, samples: Samples) -> Scores:
        """Return the term of each sample, shape (n,); NaN where Φ failed."""
        texts = samples.require(self.start, "Potential")
        # A source does not start with the text's prefix.
        prefixes = texts if self.start == "prefixes" else [""] * len(texts)
        starts, phi = samples.replace(texts=texts, prefixes=prefixes), {"potential": self.phi}
        before, after = score(phi, starts)["potential"], np.zeros(len(samples))
        if self.discount > 0:
            after = score(phi, samples)["potential"]
        return self.weight * potential_difference(before, after, self.discount)


@dataclass(frozen=True)
class LengthWindow:
    """Penalty for each token by which a completion is too short or too long.

    Args:
        low: Shortest length without a penalty, in tokens, end token included.
        high: Longest length without a penalty.
        cost: Penalty per token outside the window, in units of the reward, ≥ 0.

    Raises:
        ValueError: `low` above `high`, or a negative value.

    Examples:
        >>> LengthWindow(low=5, high=20, cost=0.1).term(np.array([3.0, 25.0]))
        array([-0.2, -0.5])
    """

    low: int
    high: int
    cost: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(
                f"low and high must be 0 <= low <= high, got low = {self.low}, high = {self.high}"
            )
        not_negative("cost", self.cost)  # else it would be a bonus

    def term(self, lengths: Scores) -> Scores:
        """Return the term of each length, ≤ 0, shape (n,)."""
        return -self.cost * distance_outside(lengths, self.low, self.high)


@dataclass(frozen=True)
class SoftOverlong:
    """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), times `weight`.

    Args:
        longest: Length from which the full penalty applies, in tokens; usually the policy's
            `max_completion_length`.
        cache: Number of tokens before `longest` over which the penalty grows linearly from 0.
        weight: The full penalty, in units of the reward, ≥ 0.

    Raises:
        ValueError: `cache` is not in 1 to `longest`, or the weight is negative.

    Examples:
        >>> SoftOverlong(longest=64, cache=16).term(np.array([40.0, 56.0, 64.0]))
        array([ 0. , -0.5, -1. ])
    """

    longest: int
    cache: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.cache <= self.longest:
            raise ValueError(
                f"cache must be 1 to longest = {self.longest} tokens, got {self.cache}"
            )
        not_negative("weight", self.weight)

    def term(self, lengths: Scores) -> Scores:
        """Return the term of each length, in [-weight, 0], shape (n,)."""
        return self.weight * soft_overlong_punishment(lengths, self.longest, self.cache)
