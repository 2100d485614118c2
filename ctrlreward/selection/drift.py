"""Drift of a policy's rollouts from its first steps, in the ways of reward hacking.

There is an alarm if the reward has risen and the completions have drifted by more than a tolerance:
in length, in repetition, or one component carries the rise, while the others have not risen.

The first 10 steps are the reference, and later blocks of as many steps are compared with it. The
unit is a group, the completions of a prompt in one step, paired with a group of the reference.
Under the null, a mean reward of at most the reference's or a statistic within its tolerance, a
pair's difference is as likely to have the opposite sign, so flips of signs test it
(`ctrlreward.functional.sequential`). The k-th block has 6 / (π² k²) of the level of the run, shared
by the statistics (Bonferroni). The reward's rise is tested at all of it: an alarm needs both tests
(intersection-union, Berger 1982).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import one_of
from ctrlreward.functional.diversity import repetition
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.sequential import check_level, level_of_test, rise_p_value
from ctrlreward.models.words import split_words

Floats: TypeAlias = npt.NDArray[np.float64]

TOLERANCES = {"length": 2.0, "repetition": 0.1, "component": 1.0}
STEPS = 10  # of the reference and of each block, which
GROUPS = 40  # also wait for: 20 pairs have p-values down to 1e-6, enough for hundreds of tests
WORDS = 3  # of the n-grams whose repetition is counted


class DriftAlarm(NamedTuple):
    """An alarm on a statistic: `"length"`, `"repetition"` or `"component/<name>"`.

    `reference` and `value` are its means in the reference and in the block that ended at `step`, of
    lengths geometric means in words; `p_value` is the smallest level of the whole run at which this
    test would raise an alarm, and `example` a completion of the group with the most extreme value.
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


class DriftMonitor:
    """Statistics of each step's rollouts, and alarms on their drift from the first steps.

    Args:
        level: Probability of any false alarm in the whole run.
        tolerances: Largest drift that doesn't matter, by statistic: `"length"` (2) is a factor,
            `"repetition"` (0.1) an increase of a share, `"component"` (1) how much more one
            component rises than the mean of the others, in standard deviations of reference and
            block together. Infinity leaves a statistic out.

    Examples:
        >>> columns = {"reward": np.array([1.0, 0.0])}
        >>> DriftMonitor().update(1, ["a", "a"], ["so so so so", "good"], columns)
        ({'length': 2.5, 'repetition': 0.5}, [])
    """

    def __init__(self, level: float = 0.05, tolerances: Mapping[str, float] | None = None) -> None:
        check_level(level)
        for name in tolerances or {}:
            one_of("statistic of tolerances", name, TOLERANCES)
        self.level = level
        self.tolerances = {**TOLERANCES, **(tolerances or {})}
        self.alarms: list[DriftAlarm] = []
        # A completion of each group, and the means of its columns.
        self._reference: list[tuple[str, dict[str, float]]] = []
        self._block: list[tuple[str, dict[str, float]]] = []
        self._steps = self._tests = 0  # of the block, of the run

    def update(
        self,
        step: int,
        prompts: Sequence[Hashable],
        texts: Sequence[str],
        columns: Mapping[str, Floats],
    ) -> tuple[dict[str, float], list[DriftAlarm]]:
        """Return the statistics of a step and new alarms, at most one per statistic in a run.

        `prompts` has the prompt of each of n completions, or a key of it; `columns` are `"reward"`
        and each `"component/<name>"`, of shape (n,), NaN where they failed. The statistics are
        means, NaN where undefined: `length` in words at white space, `repetition` the share of word
        trigrams that repeat an earlier one of the completion.
        """
        words = [split_words(text) for text in texts]
        lengths = np.array([len(each) for each in words], float)
        repeated = np.array([repetition(each, WORDS) for each in words])
        columns = {**columns, "length": np.log1p(lengths), "repetition": repeated}
        groups: dict[Hashable, list[int]] = {}
        for i, prompt in enumerate(prompts):
            groups.setdefault(prompt, []).append(i)
        for rows in groups.values():
            means = {name: valid_mean(column[rows]) for name, column in columns.items()}
            self._block.append((texts[rows[0]], means))
        self._steps += 1
        new: list[DriftAlarm] = []
        if self._steps >= STEPS and len(self._block) >= GROUPS:
            if self._reference:
                new = self._compare(step)
            else:
                self._reference = self._block
            self._block, self._steps = [], 0
        self.alarms += new
        return {"length": valid_mean(lengths), "repetition": valid_mean(repeated)}, new

    def _compare(self, step: int) -> list[DriftAlarm]:
        self._tests += 1
        share = level_of_test(1.0, self._tests)
        pairs = [(a[1], b[1]) for a, b in zip(self._reference, self._block, strict=False)]
        columns = {
            name: np.array([[means.get(name, np.nan) for means in pair] for pair in pairs]).T
            for name in self._block[0][1]
        }
        rise = rise_p_value(*columns["reward"]) / share
        drifts = _drifts(columns, self.tolerances) if rise <= self.level else {}
        known, alarms = {alarm.statistic for alarm in self.alarms}, []
        for name, drift in drifts.items():
            p_value = max(rise, len(drifts) * drift / share)
            if p_value > self.level or name in known:
                continue
            valid = np.isfinite(columns[name]).all(axis=0)
            means = columns[name][:, valid].mean(axis=1)
            drifted = np.sign(means[1] - means[0]) * columns[name][1]
            example = self._block[int(np.argmax(np.where(valid, drifted, -np.inf)))][0]
            before, after = (np.expm1(means) if name == "length" else means).tolist()
            alarms.append(DriftAlarm(name, step, before, after, p_value, example))
        return alarms


def _drifts(columns: Mapping[str, Floats], tolerances: Mapping[str, float]) -> dict[str, float]:
    """Return the p-value of a drift beyond the tolerance, by statistic."""

    def rise(before: Floats, after: Floats, tolerance: float) -> float:
        return rise_p_value(before, after, tolerance) if math.isfinite(tolerance) else 1.0

    before, after = columns["length"]  # logarithms
    factor = math.log(tolerances["length"])
    either = min(rise(before, after, factor), rise(after, before, factor))
    before, after = columns["repetition"]
    repeated = rise(before, after, tolerances["repetition"])
    p_values = {"length": min(1.0, 2 * either), "repetition": repeated}
    scaled = {name: _scaled(pair) for name, pair in columns.items() if "/" in name}
    for name, own in scaled.items() if len(scaled) > 1 else ():
        others = np.mean([scaled[other] for other in scaled if other != name], axis=0)
        before, after = own - others
        rest = (others[1] - others[0])[np.isfinite(after - before)]
        carries = len(rest) > 0 and rest.mean() <= 0
        p_values[name] = rise(before, after, tolerances["component"]) if carries else 1.0
    return p_values


def _scaled(pair: Floats) -> Floats:
    """Return both columns, shape (2, pairs), in standard deviations of their valid pairs together.

    Flips of a pair leave this unit as it is.
    """
    valid = pair[:, np.isfinite(pair).all(axis=0)]
    deviation = valid.std() if valid.size else 0.0
    return pair / deviation if deviation > 0 else np.where(np.isfinite(pair), 0.0, math.nan)
