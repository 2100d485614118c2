"""Drift of a policy's rollouts from its first steps, in the ways of reward hacking.

There is an alarm if the reward has risen and at the same time the completions have drifted by more
than a tolerance: their length, their repetition, or one component that carries the rise, while the
others have not risen. No held-out score is needed.

The first `reference_steps` steps are the reference. Later steps are compared with it in blocks of
as many steps. The unit is a group, the completions of a prompt in one step: a group is paired with
a group of the reference with the same prompt where there is one, else with a free one, so that
under the null a pair's difference is as likely to have the opposite sign, and flips of signs test
it (`ctrlreward.functional.sequential`). The null of a statistic: the policy of each step has a
mean reward of at most the reference's, or a statistic within its tolerance. The k-th block has
6 / (π² k²) of the level of the run, shared by the statistics (Bonferroni). The reward's rise is
tested at all of it: an alarm needs both tests (intersection-union, Berger 1982).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import one_of, positive
from ctrlreward.functional.diversity import repetition
from ctrlreward.functional.sequential import check_level, level_of_test, rise_p_value
from ctrlreward.text.words import split_words

Floats: TypeAlias = npt.NDArray[np.float64]

# Drifts that do not matter: completions up to twice as long or half as long, a tenth more repeated
# trigrams, a component that rises by a standard deviation more than the others.
TOLERANCES = {"length": 2.0, "repetition": 0.1, "component": 1.0}
REFERENCE_STEPS = 10
LEVEL = 0.05
# A block also waits for this many groups: 20 pairs have p-values down to 1e-6, enough for hundreds
# of tests.
GROUPS = 40
WORDS = 3  # of the n-grams whose repetition is counted


class Rollouts(NamedTuple):
    """Completions of one step of the trainer, n of them, with their rewards.

    `prompts` are the prompt of each completion, or a key of it. `rewards`, shape (n,), are NaN
    where they failed. `components` has the reward's components by name, shape (n,) each.

    Examples:
        >>> Rollouts(1, ["The soup"], ["was cold."], np.array([0.5]), {}).step
        1
    """

    step: int
    prompts: Sequence[Hashable]
    texts: Sequence[str]
    rewards: Floats
    components: Mapping[str, Floats]


class DriftAlarm(NamedTuple):
    """An alarm: the reward has risen while a statistic of the completions has drifted.

    Attributes:
        statistic: `"length"`, `"repetition"` or `"component/<name>"`.
        step: Last step of the block that was compared with the reference.
        reference: Mean of the statistic in the reference; of lengths the geometric mean, in words.
        value: The same in the block.
        p_value: Smallest level of the whole run at which this test would raise an alarm.
        example: Completion of the block with the most extreme value, or with the highest reward.

    Examples:
        >>> str(DriftAlarm("length", 30, 20.0, 61.0, 0.001, "The soup was very, very good"))
        "length was 20 in the first steps and is 61 at step 30, while the reward has risen. An...
    """

    statistic: str
    step: int
    reference: float
    value: float
    p_value: float
    example: str

    def __str__(self) -> str:
        return (
            f"{self.statistic} was {self.reference:.3g} in the first steps and is {self.value:.3g} "
            f"at step {self.step}, while the reward has risen. An example: {self.example[:300]!r}"
        )


@dataclass(frozen=True)
class _Group:
    """Completions of a prompt in one step; `values` are means of the reward and the statistics."""

    prompt: Hashable
    texts: tuple[str, ...]
    rewards: tuple[float, ...]
    values: Mapping[str, float]


_Pair: TypeAlias = tuple[_Group, _Group | None]


class DriftMonitor:
    """Statistics of each step's rollouts, and alarms on their drift from the first steps.

    Args:
        reference_steps: Number of first steps that later ones are compared with, in blocks of as
            many steps. Reference and blocks also wait for 40 groups.
        level: Probability of any false alarm in the whole run.
        tolerances: Largest drift that doesn't matter, by statistic: `"length"` (2) is a factor,
            `"repetition"` (0.1) an increase of a share, `"component"` (1) how much more one
            component rises than the mean of the others, in standard deviations of reference and
            block together. Infinity leaves a statistic out.

    Raises:
        ValueError: An unknown statistic, or a level, tolerance or number of steps out of range.

    Examples:
        >>> monitor = DriftMonitor(reference_steps=2)
        >>> rollouts = Rollouts(1, ["a", "a"], ["so so so so", "good"], np.array([1.0, 0.0]), {})
        >>> metrics, alarms = monitor.update(rollouts)
        >>> metrics
        {'length': 2.5, 'repetition': 0.5}
    """

    def __init__(
        self,
        reference_steps: int = REFERENCE_STEPS,
        level: float = LEVEL,
        tolerances: Mapping[str, float] | None = None,
    ) -> None:
        self.reference_steps = positive("reference_steps", reference_steps)
        check_level(level)
        self.level = level
        self.tolerances = {**TOLERANCES, **(tolerances or {})}
        for name, tolerance in self.tolerances.items():
            one_of("statistic of tolerances", name, tuple(TOLERANCES))
            smallest = 1.0 if name == "length" else 0.0
            if not tolerance >= smallest:
                raise ValueError(
                    f"tolerances[{name!r}] must be at least {smallest:g}, got {tolerance}"
                )
        self.alarms: list[DriftAlarm] = []
        self.tests = 0
        self._reference: list[_Group] = []
        self._block: list[_Group] = []
        self._steps = 0  # of the block

    def update(self, rollouts: Rollouts) -> tuple[dict[str, float], list[DriftAlarm]]:
        """Return the statistics of a step and new alarms, at most one per statistic in a run.

        Means over groups: `length` is in words at white space, `repetition` the share of word
        trigrams that repeat an earlier one of the completion. NaN where undefined.
        """
        rows: dict[Hashable, list[int]] = {}
        for i, prompt in enumerate(rollouts.prompts):
            rows.setdefault(prompt, []).append(i)
        groups = [_group(rollouts, each) for each in rows.values()]
        metrics = {
            "length": _mean([group.values["words"] for group in groups]),
            "repetition": _mean([group.values["repetition"] for group in groups]),
        }
        self._block += groups
        self._steps += 1
        new: list[DriftAlarm] = []
        if self._steps >= self.reference_steps and len(self._block) >= GROUPS:
            if self._reference:
                new = self._compare(rollouts.step)
            else:
                self._reference = self._block
            self._block, self._steps = [], 0
        self.alarms += new
        return metrics, new

    def _compare(self, step: int) -> list[DriftAlarm]:
        """Return the alarms of the block that has ended."""
        self.tests += 1
        share = level_of_test(1.0, self.tests)
        pairs = _paired(self._reference, self._block)
        rise = rise_p_value(*_columns(pairs, "reward")) / share
        if rise > self.level:
            return []
        known = {alarm.statistic for alarm in self.alarms}
        drifts = self._drifts(pairs)
        alarms = []
        for name, drift in drifts.items():
            p_value = max(rise, len(drifts) * drift / share)
            if p_value <= self.level and name not in known:
                alarms.append(self._alarm(name, step, _columns(pairs, name), p_value))
        return alarms

    def _drifts(self, pairs: Sequence[_Pair]) -> dict[str, float]:
        """Return the p-value of a drift beyond the tolerance, by statistic."""
        found = {}
        if math.isfinite(self.tolerances["length"]):
            before, after = _columns(pairs, "length")
            margin = math.log(self.tolerances["length"])
            either = rise_p_value(before, after, margin), rise_p_value(after, before, margin)
            found["length"] = min(1.0, 2 * min(either))
        before, after = _columns(pairs, "repetition")
        if math.isfinite(self.tolerances["repetition"]) and np.isfinite(before).any():
            found["repetition"] = rise_p_value(before, after, self.tolerances["repetition"])
        names = [name for name in pairs[0][0].values if name.startswith("component/")]
        if math.isfinite(self.tolerances["component"]) and len(names) > 1:
            scaled = {name: _scaled(*_columns(pairs, name)) for name in names}
            for name in names:
                others = np.mean([scaled[other] for other in names if other != name], axis=0)
                before, after = scaled[name] - others
                rest = (others[1] - others[0])[np.isfinite(after - before)]
                carries = len(rest) and rest.mean() <= 0
                p_value = rise_p_value(before, after, self.tolerances["component"])
                found[name] = p_value if carries else 1.0
        return found

    def _alarm(
        self, name: str, step: int, values: tuple[Floats, Floats], p_value: float
    ) -> DriftAlarm:
        both = np.isfinite(values[0]) & np.isfinite(values[1])
        means = [float(column[both].mean()) for column in values]
        longer = means[1] > means[0]
        if name == "length":
            means = [math.expm1(mean) for mean in means]

        def rank(text: str, reward: float) -> float:
            if name == "length":
                return len(text) if longer else -len(text)
            if name == "repetition":
                found = repetition(split_words(text), WORDS)
                return -1.0 if math.isnan(found) else found
            return reward if math.isfinite(reward) else -math.inf

        completions = [
            each for group in self._block for each in zip(group.texts, group.rewards, strict=True)
        ]
        example, _ = max(completions, key=lambda each: rank(*each))
        return DriftAlarm(name, step, means[0], means[1], p_value, example)


def _group(rollouts: Rollouts, rows: list[int]) -> _Group:
    texts = tuple(rollouts.texts[i] for i in rows)
    words = [split_words(text) for text in texts]
    rewards = tuple(float(rollouts.rewards[i]) for i in rows)
    values = {
        "reward": _mean(rewards),
        "length": _mean([math.log1p(len(each)) for each in words]),
        "words": _mean(list(map(len, words))),
        "repetition": _mean([repetition(each, WORDS) for each in words]),
        **{f"component/{k}": _mean(v[rows].tolist()) for k, v in rollouts.components.items()},
    }
    return _Group(rollouts.prompts[rows[0]], texts, rewards, values)


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, NaN if there is none; a numpy call costs more."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _paired(reference: Sequence[_Group], block: Sequence[_Group]) -> list[_Pair]:
    """Pair the groups of the reference with groups of the block, of the same prompt if possible."""
    free: dict[Hashable, deque[int]] = {}
    for i, group in enumerate(reference):
        free.setdefault(group.prompt, deque()).append(i)
    partners: list[_Group | None] = [None] * len(reference)
    others = []
    for group in block:
        places = free.get(group.prompt)
        if places:
            partners[places.popleft()] = group
        else:
            others.append(group)
    empty = [i for i, partner in enumerate(partners) if partner is None]
    for i, group in zip(empty, others, strict=False):
        partners[i] = group
    return list(zip(reference, partners, strict=True))


def _columns(pairs: Sequence[_Pair], name: str) -> tuple[Floats, Floats]:
    """Return a statistic of both groups of each pair, NaN where a group lacks it."""
    before = [first.values.get(name, math.nan) for first, _ in pairs]
    after = [math.nan if each is None else each.values.get(name, math.nan) for _, each in pairs]
    return np.array(before), np.array(after)


def _scaled(before: Floats, after: Floats) -> Floats:
    """Return both columns, shape (2, pairs), in standard deviations of their valid pairs together.

    Flips of a pair leave this unit as it is.
    """
    both = np.stack([before, after])
    valid = both[:, np.isfinite(both).all(axis=0)]
    deviation = valid.std() if valid.size else 0.0
    return both / deviation if deviation > 0 else np.where(np.isfinite(both), 0.0, math.nan)
