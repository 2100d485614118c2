"""Useful ranges of scores, held during training by learned Lagrange multipliers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.arguments import positive
from ctrlreward.functional.shaping import Moments, constrained_rewards, next_multiplier
from ctrlreward.ranks import fail_together, on_every_rank
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score
from ctrlreward.scorers.components import ComponentLike, as_component

_REWARD = ""  # key of the moments of the reward


@dataclass(frozen=True)
class UsefulRange:
    """Range of a score to stay in; outside of it, the reward leads the policy back.

    Args:
        low: Smallest useful mean, None for no bound.
        high: Largest useful mean, None for no bound.
        component: The score of each text. None: the component of the reward that has the name of
            the range; with weight 0 it is bounded, not rewarded.
        from_start: Bounds are differences from the first mean: `low=0.0` is the mean at the start.
    """

    low: float | None = None
    high: float | None = None
    component: ComponentLike | None = None
    from_start: bool = False

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("low and high are None, must have at least one bound")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"low must not exceed high, got low = {self.low}, high = {self.high}")


class RangeMultipliers:
    """Multipliers of the bounds of some ranges, `<range>_low` and `<range>_high`.

    Excesses and distances count in standard deviations of the score over all texts so far, and
    these as many deviations of the reward: a multiplier means the same for every score.
    """

    def __init__(self, ranges: Mapping[str, UsefulRange], rate: float) -> None:
        if not ranges:
            raise ValueError("ranges is empty, must map a name to UsefulRange(low=..., high=...)")
        self.ranges = dict(ranges)
        self.rate = positive("range_rate", rate)
        self.starts: dict[str, float] = {}
        self.multipliers = {side: 0.0 for side, *_ in self._sides()}
        self.integrals = dict(self.multipliers)
        self.moments = {name: Moments() for name in (_REWARD, *ranges)}
        self.components: dict[str, Component] = {
            name: as_component(name, each.component)
            for name, each in ranges.items()
            if each.component is not None
        }
        self._means: dict[str, float] = {}  # of the last step

    def to_dict(self) -> dict[str, Any]:
        """Return the learned state, as plain data."""
        return {
            "multipliers": dict(self.multipliers),
            "integrals": dict(self.integrals),
            "starts": dict(self.starts),
            "moments": {name: asdict(each) for name, each in self.moments.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `to_dict` returned; missing bounds start anew."""
        for side in self.multipliers.keys() & state["multipliers"].keys():
            self.multipliers[side] = state["multipliers"][side]
            self.integrals[side] = state["integrals"][side]
        self.starts = {n: v for n, v in state["starts"].items() if n in self.ranges}
        moments = state["moments"].items()
        self.moments |= {n: Moments(**each) for n, each in moments if n in self.moments}

    def check(self, reward: Reward) -> None:
        """Raise a ValueError for a range whose score the reward lacks, or that no text moves."""
        for name in self.ranges:
            component = self.components.get(name) or reward.components.get(name)
            if component is None:
                raise ValueError(f"ranges[{name!r}] has no component, nor has the reward")
            if component.scorer.of_groups:
                raise ValueError(
                    f"ranges[{name!r}] must bound a score of single texts, got {component.name}, "
                    "which is one number for all texts of a group"
                )

    def constrained(self, samples: Samples, scored: RewardBatch, rewards: Scores) -> Scores:
        """Return n rewards mixed with the distances from the bounds, (n,); NaN if one is NaN.

        A collective: the samples of all ranks count in the means and deviations.
        """
        own = self.components
        scores = fail_together(lambda: score(own, samples).warned()) if own else {}
        values = {n: scores[n] if n in own else scored.components[n] for n in self.ranges}
        columns = {_REWARD: rewards, **values}
        by_rank = on_every_rank(lambda: {name: Moments.of(each) for name, each in columns.items()})
        self._means = {}
        for name in columns:
            of_step = Moments()
            for rank in by_rank:
                of_step = of_step.merged(rank[name])
            self.moments[name] = self.moments[name].merged(of_step)
            if name != _REWARD and of_step.count:
                self._means[name] = of_step.mean
                self.starts.setdefault(name, of_step.mean)
        unit = self.moments[_REWARD].std or 1.0
        terms = []
        for side, name, sign, bound in self._sides():
            deviation = self.moments[name].std
            if self.multipliers[side] > 0 and deviation > 0:
                inside = sign * (values[name] - bound) * unit / deviation
                terms.append((self.multipliers[side], inside))
        failed = np.isnan([*values.values()]).any(axis=0)
        return np.where(failed, np.nan, constrained_rewards(rewards, terms))

    def end_step(self) -> dict[str, float]:
        """Adapt the multipliers to the means of the step, which are returned by range."""
        means, self._means = self._means, {}
        for side, name, sign, bound in self._sides():
            deviation = self.moments[name].std
            if name in means and deviation > 0:
                excess = sign * (bound - means[name]) / deviation
                self.integrals[side], self.multipliers[side] = next_multiplier(
                    self.integrals[side], excess, self.rate
                )
        return means

    def _sides(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield each bound: its name, its range, +1 for low and -1 for high, and its value."""
        for name, each in self.ranges.items():
            start = self.starts.get(name, 0.0) if each.from_start else 0.0
            for side, sign, bound in (("low", 1.0, each.low), ("high", -1.0, each.high)):
                if bound is not None:
                    yield f"{name}_{side}", name, sign, bound + start
