"""What `RewardShaping` weighs rewards with and adds to them: plain values that make terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from ctrlreward.functional.shaping import (
    piecewise_linear,
    potential_difference,
    soft_overlong_punishment,
    tokens_outside,
)
from ctrlreward.reward import Reward, check_direction
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score


@dataclass(frozen=True)
class WeightSchedules:
    """Weights of a `Reward`'s components that change over the steps.

    Args:
        points: Component → pairs of step and weight, by rising step, between which it goes in
            straight lines.

    Raises:
        ValueError: A component without points, or with points that don't rise.
    """

    points: Mapping[str, Sequence[tuple[int, float]]]

    def __post_init__(self) -> None:
        for name, points in self.points.items():
            steps = [step for step, _ in points]
            if not steps or any(after <= step for step, after in pairwise(steps)):
                raise ValueError(
                    f"weights[{name!r}] = {points}: give points of step and weight, by rising step"
                )

    def check(self, reward: Reward) -> None:
        """Refuses weights that mean nothing to the reward.

        Raises:
            ValueError: It has no such component or is no weighted sum, or a weight rewards the
                worse direction.
        """
        for name, points in self.points.items():
            if name not in reward.components:
                raise ValueError(
                    f"weights[{name!r}] is of no component of the reward, which has "
                    f"{', '.join(reward.components)}"
                )
            if reward.weights is None:
                raise ValueError(
                    f"weights[{name!r}] has no place in a reward whose aggregate is no weighted "
                    "sum: build it with aggregate='weighted', or leave its weights out"
                )
            for _, weight in points:
                check_direction(name, reward.components[name], weight)

    def at(self, step: int) -> dict[str, float]:
        """The weight of each component at a step."""
        return {name: piecewise_linear(step, points) for name, points in self.points.items()}


@dataclass(frozen=True)
class Potential:
    """weight · (γ · Φ(text) − Φ(start)): what a text is worth, less what was there before it.

    `discount` = 1 rewards an improvement over the start, `discount` = 0 takes off what the prompt
    was worth and changes no optimum (`ctrlreward.functional.shaping.potential_difference`). What
    it takes off is the same for all completions of a prompt, so it cancels out where advantages
    compare these with each other or with the greedy one, and matters to a baseline over the batch,
    to clipping and to running normalisation.

    Args:
        component: Φ: one score of a scorer, `scorer["similarity"]`.
        weight: Its sign is that of the score's better direction.
        discount: γ, in [0, 1].
        start: `"prefixes"`: the beginning that was written on from; `"sources"`: the text that was
            rewritten. Φ reads it in the place of the text; a start that it can't score fails the
            sample.

    Raises:
        ValueError: A discount out of range, or a weight that rewards the worse direction.
    """

    component: Component
    weight: float = 1.0
    discount: float = 1.0
    start: Literal["prefixes", "sources"] = "prefixes"

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount = {self.discount}: give 0 to 1")
        check_direction(self.component.name, self.component, self.weight)

    def term(self, samples: Samples) -> Scores:
        """What is added to the reward of each sample, shape (n,); NaN where Φ failed."""
        before = self._value(self._starts(samples))
        after = self._value(samples) if self.discount > 0 else np.zeros(len(samples))
        return self.weight * potential_difference(before, after, self.discount)

    def _value(self, samples: Samples) -> Scores:
        return score({"potential": self.component}, samples)["potential"]

    def _starts(self, samples: Samples) -> Samples:
        texts = samples.require(self.start, "Potential")
        # A source goes without the beginning that the text was given.
        prefixes = texts if self.start == "prefixes" else [""] * len(texts)
        return samples.replace(texts=texts, prefixes=prefixes)


@dataclass(frozen=True)
class LengthWindow:
    """Takes `cost` off for each token that a completion is shorter or longer than the window.

    `LengthWindow(0, 0, cost)` is a price of every token.

    Args:
        low: Shortest length that costs nothing, in tokens, the end token included.
        high: Longest such length.
        cost: Per token outside, in units of the reward.

    Raises:
        ValueError: `low` above `high`, or a negative value.
    """

    low: int
    high: int
    cost: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"low = {self.low}, high = {self.high}: give 0 <= low <= high")
        if self.cost < 0:
            raise ValueError(f"cost = {self.cost} rewards what it should punish: give {-self.cost}")

    def term(self, lengths: Scores) -> Scores:
        """What is added to the reward of each length, at most 0, shape (n,)."""
        return -self.cost * tokens_outside(lengths, self.low, self.high)


@dataclass(frozen=True)
class SoftOverlong:
    """DAPO's soft overlong punishment (Yu et al. 2025, eq. 13), times `weight`.

    Args:
        longest: From this length on, in tokens, the punishment is whole; the module's
            `max_new_tokens`, as a rule.
        cache: Over so many tokens before that it grows from nothing.
        weight: The whole punishment, in units of the reward.

    Raises:
        ValueError: `cache` not in 1 to `longest`, or a negative weight.
    """

    longest: int
    cache: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.cache <= self.longest:
            raise ValueError(f"cache = {self.cache}: give 1 to longest = {self.longest} tokens")
        if self.weight < 0:
            raise ValueError(
                f"weight = {self.weight} rewards what it should punish: give {-self.weight}"
            )

    def term(self, lengths: Scores) -> Scores:
        """What is added to the reward of each length, in [-weight, 0], shape (n,)."""
        return self.weight * soft_overlong_punishment(lengths, self.longest, self.cache)
