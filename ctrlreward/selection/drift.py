"""Drift of a policy's rollouts from its first steps, in the ways of reward hacking.

There is an alarm if the reward has risen and the completions have drifted by more than a tolerance:
in length, in repetition, or one component carries the rise, while the others have not risen.

The first 10 steps are the reference, and later blocks of as many steps are compared with it. The
unit is a group, the completions of a prompt in one step, paired with a group of the reference of
the same prompt where there is one, else with a free one. Under the null, a mean reward of at most
the reference's or a statistic within its tolerance, a pair's difference is as likely to have the
opposite sign, so flips of signs test it (`ctrlreward.functional.sequential`). The k-th block has
6 / (π² k²) of the level of the run, shared by the statistics (Bonferroni). The reward's rise is
tested at all of it: an alarm needs both tests (intersection-union, Berger 1982).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import one_of
from ctrlreward.functional.diversity import repetition
from ctrlreward.functional.sequential import check_level, level_of_test, rise_p_value
from ctrlreward.models.words import split_words

Floats: TypeAlias = npt.NDArray[np.float64]

LEVEL = 0.05
TOLERANCES = {"length": 2.0, "repetition": 0.1, "component": 1.0}
STEPS = 10  # of the reference and of each block, which
GROUPS = 40  # also wait for: 20 pairs have p-values down to 1e-6, enough for hundreds of tests
WORDS = 3  # of the n-grams whose repetition is counted


class Rollouts(NamedTuple):
    """n completions of a step: their prompts, or a key of each, texts, rewards and components.

    `rewards` have shape (n,), NaN where they failed; so have `components`, by name.
    """

    prompts: Sequence[Hashable]
    texts: Sequence[str]
    rewards: Floats
    components: Mapping[str, Floats]


class DriftAlarm(NamedTuple):
    """An alarm on a statistic: `"length"`, `"repetition"` or `"component/<name>"`.

    `reference` and `value` are its means in the reference and in the block that ended at `step`, of
    lengths geometric means in words; `p_value` is the smallest level of the whole run at which this
    test would raise an alarm, and `example` a completion of the group with the most extreme value.

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


class _Group(NamedTuple):
    """Completions of a prompt in one step: the first one, and means of reward and statistics."""

    prompt: Hashable
    text: str
    values: Mapping[str, float]


class DriftMonitor:
    """Statistics of each step's rollouts, and alarms on their drift from the first steps.

    Args:
        level: Probability of any false alarm in the whole run.
        tolerances: Largest drift that doesn't matter, by statistic: `"length"` (2) is a factor,
            `"repetition"` (0.1) an increase of a share, `"component"` (1) how much more one
            component rises than the mean of the others, in standard deviations of reference and
            block together. Infinity leaves a statistic out.

    Raises:
        ValueError: An unknown statistic, or a level or tolerance out of range.

    Examples:
        >>> rollouts = Rollouts(["a", "a"], ["so so so so", "good"], np.array([1.0, 0.0]), {})
        >>> DriftMonitor().update(1, rollouts)
        ({'length': 2.5, 'repetition': 0.5}, [])
    """

    def __init__(self, level: float = LEVEL, tolerances: Mapping[str, float] | None = None) -> None:
        check_level(level)
        self.level = level
        self.tolerances = {**TOLERANCES, **(tolerances or {})}
        for name, tolerance in self.tolerances.items():
            one_of("statistic of tolerances", name, tuple(TOLERANCES))
            least = 1 if name == "length" else 0
            if not tolerance >= least:
                raise ValueError(f"tolerances[{name!r}] must be at least {least}, got {tolerance}")
        self.alarms: list[DriftAlarm] = []
        self._reference: list[_Group] = []
        self._block: list[_Group] = []
        self._steps = self._tests = 0  # of the block, of the run

    def update(self, step: int, rollouts: Rollouts) -> tuple[dict[str, float], list[DriftAlarm]]:
        """Return the statistics of a step and new alarms, at most one per statistic in a run.

        Means over groups: `length` is in words at white space, `repetition` the share of word
        trigrams that repeat an earlier one of the completion. NaN where undefined.
        """
        groups = _groups(rollouts)
        means = {
            "length": _mean([group.values["words"] for group in groups]),
            "repetition": _mean([group.values["repetition"] for group in groups]),
        }
        self._block += groups
        self._steps += 1
        new: list[DriftAlarm] = []
        if self._steps >= STEPS and len(self._block) >= GROUPS:
            if self._reference:
                new = self._compare(step)
            else:
                self._reference = self._block
            self._block, self._steps = [], 0
        self.alarms += new
        return means, new

    def _compare(self, step: int) -> list[DriftAlarm]:
        """Return the alarms of the block that has ended."""
        self._tests += 1
        share = level_of_test(1.0, self._tests)
        columns = _columns(_pairs(self._reference, self._block))
        rise = rise_p_value(*columns["reward"]) / share
        known = {alarm.statistic for alarm in self.alarms}
        drifts = self._drifts(columns) if rise <= self.level else {}
        alarms = []
        for name, drift in drifts.items():
            p_value = max(rise, len(drifts) * drift / share)
            if p_value <= self.level and name not in known:
                values = columns[name]
                means = values[:, np.isfinite(values).all(axis=0)].mean(axis=1)
                sign = np.sign(means[1] - means[0])
                extremes = [np.nan_to_num(sign * g.values[name], nan=-np.inf) for g in self._block]
                text = self._block[int(np.argmax(extremes))].text
                before, after = (np.expm1(means) if name == "length" else means).tolist()
                alarms.append(DriftAlarm(name, step, before, after, p_value, text))
        return alarms

    def _drifts(self, columns: Mapping[str, Floats]) -> dict[str, float]:
        """Return the p-value of a drift beyond the tolerance, by statistic."""

        def rise(before: Floats, after: Floats, tolerance: float) -> float:
            return rise_p_value(before, after, tolerance) if math.isfinite(tolerance) else 1.0

        before, after = columns["length"]
        factor = math.log(self.tolerances["length"])
        either = rise(before, after, factor), rise(after, before, factor)
        before, after = columns["repetition"]
        p_values = {
            "length": min(1.0, 2 * min(either)),
            "repetition": rise(before, after, self.tolerances["repetition"]),
        }
        scaled = {name: _scaled(pair) for name, pair in columns.items() if "/" in name}
        for name, own in scaled.items() if len(scaled) > 1 else ():
            others = np.mean([scaled[other] for other in scaled if other != name], axis=0)
            before, after = own - others
            rest = (others[1] - others[0])[np.isfinite(after - before)]
            carries = len(rest) > 0 and rest.mean() <= 0
            p_values[name] = rise(before, after, self.tolerances["component"]) if carries else 1.0
        return p_values


def _groups(rollouts: Rollouts) -> list[_Group]:
    rows: dict[Hashable, list[int]] = {}
    for i, prompt in enumerate(rollouts.prompts):
        rows.setdefault(prompt, []).append(i)
    columns = {f"component/{name}": values for name, values in rollouts.components.items()}
    groups = []
    for prompt, members in rows.items():
        texts = [split_words(rollouts.texts[i]) for i in members]
        values = {
            "length": _mean([math.log1p(len(words)) for words in texts]),
            "words": _mean(list(map(len, texts))),
            "repetition": _mean([repetition(words, WORDS) for words in texts]),
            "reward": _mean(rollouts.rewards[members].tolist()),
            **{name: _mean(column[members].tolist()) for name, column in columns.items()},
        }
        groups.append(_Group(prompt, rollouts.texts[members[0]], values))
    return groups


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, NaN if there is none; a numpy call costs more."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _pairs(reference: Sequence[_Group], block: Sequence[_Group]) -> list[tuple[_Group, _Group]]:
    """Pair groups of the reference with groups of the block, of the same prompt if possible."""
    free: dict[Hashable, list[_Group]] = {}
    for group in reversed(reference):
        free.setdefault(group.prompt, []).append(group)
    alike = [(free[group.prompt].pop(), group) for group in block if free.get(group.prompt)]
    paired = {id(group) for pair in alike for group in pair}
    rest = ([group for group in side if id(group) not in paired] for side in (reference, block))
    return [*alike, *zip(*rest, strict=False)]


def _columns(pairs: Sequence[tuple[_Group, _Group]]) -> dict[str, Floats]:
    """Return each statistic of both groups of each pair, shape (2, pairs), NaN where undefined."""
    names = dict.fromkeys(name for pair in pairs for group in pair for name in group.values)
    sides = list(zip(*pairs, strict=True))
    return {n: np.array([[g.values.get(n, math.nan) for g in s] for s in sides]) for n in names}


def _scaled(pair: Floats) -> Floats:
    """Return both columns, shape (2, pairs), in standard deviations of their valid pairs together.

    Flips of a pair leave this unit as it is.
    """
    valid = pair[:, np.isfinite(pair).all(axis=0)]
    deviation = valid.std() if valid.size else 0.0
    return pair / deviation if deviation > 0 else np.where(np.isfinite(pair), 0.0, math.nan)
