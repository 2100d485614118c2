"""Useful ranges of scores, held during training by learned Lagrange multipliers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.arguments import did_you_mean
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
        monitor: Logged key that has to stay in the range, `"score/distinct_2"`. The multiplier then
            follows validations, and `component` determines which texts move the metric, such as
            `Repetition`. None: the mean of the component over the completions of a step.
        from_start: Bounds are differences from the first mean: `low=0.0` is the mean at the start.

    Raises:
        ValueError: No bound, or `low` above `high`.

    Examples:
        >>> UsefulRange(low=0.5, high=0.9)
        UsefulRange(low=0.5, high=0.9, component=None, monitor=None, from_start=False)
    """

    low: float | None = None
    high: float | None = None
    component: ComponentLike | None = None
    monitor: str | None = None
    from_start: bool = False

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("low and high are None, must have at least one bound")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError(f"low must not exceed high, got low = {self.low}, high = {self.high}")


class RangeMultipliers:
    """Multipliers of the bounds of some ranges, `<range>_low` and `<range>_high`.

    The excess of a mean over its bound, and the distance of a text from it, count in standard
    deviations of the score over all texts so far, and these as many deviations of the reward: a
    multiplier means the same for every score.
    """

    def __init__(self, ranges: Mapping[str, UsefulRange], rate: float) -> None:
        if not ranges:
            raise ValueError("ranges is empty, must map a name to UsefulRange(low=..., high=...)")
        if not 0 < rate < math.inf:
            raise ValueError(f"range_rate must be positive, got {rate}")
        self.ranges = dict(ranges)
        self.rate = rate
        self.starts: dict[str, float] = {}
        self.multipliers = {name: 0.0 for name, *_ in self._sides()}
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
        known = {n: Moments(**each) for n, each in state["moments"].items() if n in self.moments}
        self.moments |= known

    def check(self, reward: Reward) -> None:
        """Raise a ValueError for a range whose score the reward lacks, or that no text moves."""
        for name in self.ranges:
            component = self.components.get(name) or reward.components.get(name)
            if component is None:
                raise ValueError(
                    f"ranges[{name!r}] has no component, and the reward has only "
                    f"{', '.join(reward.components)}{did_you_mean(name, reward.components)}. Pass "
                    "a component, or use one of these names."
                )
            if component.scorer.of_groups:
                raise ValueError(
                    f"ranges[{name!r}] bounds {component.name}, which is one number for all texts "
                    "of a group, so that none of them would be preferred. Use a score of single "
                    "texts, such as Repetition(n=2)['repetition'] for Distinct-2, and "
                    "monitor='score/distinct_2'"
                )

    def values(self, samples: Samples, scored: RewardBatch) -> dict[str, Scores]:
        """Return the bounded scores of n samples by range, each of shape (n,)."""
        own = self.components
        scores = fail_together(lambda: score(own, samples).warned()) if own else {}
        return {n: scores[n] if n in own else scored.components[n] for n in self.ranges}

    def observe(self, rewards: Scores, values: Mapping[str, Scores]) -> dict[str, float]:
        """Add the samples of all ranks to the statistics; return the mean of each score."""
        found = {_REWARD: rewards, **values}
        by_rank = on_every_rank(lambda: {name: Moments.of(each) for name, each in found.items()})
        self._means = {}
        for name in found:
            seen = Moments()
            for rank in by_rank:
                seen = seen.merged(rank[name])
            self.moments[name] = self.moments[name].merged(seen)
            if name != _REWARD and seen.count:
                self._means[name] = seen.mean
                if self.ranges[name].monitor is None:
                    self.starts.setdefault(name, seen.mean)
        return dict(self._means)

    def constrained(self, rewards: Scores, values: Mapping[str, Scores]) -> Scores:
        """Return the rewards mixed with the distances from the bounds, (n,); NaN if one is NaN."""
        unit = self.moments[_REWARD].std or 1.0
        terms = []
        for side, name, sign, bound in self._sides():
            deviation = self.moments[name].std
            if self.multipliers[side] > 0 and deviation > 0:
                inside = sign * (values[name] - bound) * unit / deviation
                terms.append((self.multipliers[side], inside))
        failed = np.isnan([*values.values()]).any(axis=0)
        return np.where(failed, np.nan, constrained_rewards(rewards, terms))

    def end_step(self) -> None:
        """Adapt the multipliers of ranges without a monitor to the means of the step."""
        self._adapt({n: m for n, m in self._means.items() if self.ranges[n].monitor is None})
        self._means = {}

    def end_validation(self, metrics: Mapping[str, float], stale: Collection[str]) -> None:
        """Adapt the multipliers of the monitored ranges; a KeyError lists the logged keys."""
        means = {}
        for name, each in self.ranges.items():
            if each.monitor is None or each.monitor in stale:
                continue
            if each.monitor not in metrics:
                raise KeyError(
                    f"ranges[{name!r}] monitors {each.monitor!r}, which is not logged"
                    f"{did_you_mean(each.monitor, metrics)}, only {', '.join(sorted(metrics))}"
                )
            if math.isfinite(metrics[each.monitor]):
                means[name] = metrics[each.monitor]
                self.starts.setdefault(name, means[name])
        self._adapt(means)

    def _adapt(self, means: Mapping[str, float]) -> None:
        for side, name, sign, bound in self._sides():
            deviation = self.moments[name].std
            if name in means and deviation > 0:
                excess = sign * (bound - means[name]) / deviation
                self.integrals[side], self.multipliers[side] = next_multiplier(
                    self.integrals[side], excess, self.rate
                )

    def _sides(self) -> Iterator[tuple[str, str, float, float]]:
        """Yield each bound: its name, its range, +1 for low and -1 for high, and its value."""
        for name, each in self.ranges.items():
            start = self.starts.get(name, 0.0) if each.from_start else 0.0
            for side, sign, bound in (("low", 1.0, each.low), ("high", -1.0, each.high)):
                if bound is not None:
                    yield f"{name}_{side}", name, sign, bound + start
