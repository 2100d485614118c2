"""Alarm on reward hacking: a proxy improves while a held-out metric declines."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ctrlreward.arguments import Mode, check_direction
from ctrlreward.functional.trend import LONGEST, Divergence, divergence
from ctrlreward.selection.metrics import no_new_value, read

# With these defaults at most 5 % of honest runs of 20 validations raise an alarm, even if the proxy
# always rises and the held-out metric is a random walk
# (benchmarks/studies/proxy_guard_false_alarms.py).
WINDOW = 12
LEVEL = 0.01


@dataclass(frozen=True)
class AlarmState:
    """Values of the last validations, and whether there is an alarm.

    Attributes:
        values: Proxy and held-out metric of the last validations, oldest first.
        alarm: Whether the last scored validation raised an alarm.
        alarm_step: Step of the first alarm, -1 before.

    Examples:
        >>> state = AlarmState(values=((0.1, 0.9), (0.2, 0.7))).alarmed(step=200)
        >>> state.alarm_step
        200
        >>> AlarmState.from_dict(state.to_dict()) == state
        True
    """

    values: tuple[tuple[float, float], ...] = ()
    alarm: bool = False
    alarm_step: int = -1

    def alarmed(self, step: int) -> AlarmState:
        """Return the state with an alarm at this step."""
        first = step if self.alarm_step < 0 else self.alarm_step
        return replace(self, alarm=True, alarm_step=first)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {
            "values": [list(pair) for pair in self.values],
            "alarm": self.alarm,
            "alarm_step": self.alarm_step,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> AlarmState:
        """Restore a state from `to_dict`."""
        values = tuple((proxy, held_out) for proxy, held_out in state["values"])
        return cls(values, state["alarm"], state["alarm_step"])


class AlarmDecision(NamedTuple):
    """Result of the test after a validation.

    Attributes:
        alarm: Whether there is an alarm. Without a new test, that of the last test.
        p_value: Larger p-value of the two tests, in (0, 1]; None if there was nothing to test.
        reason: Explanation in words.

    Examples:
        >>> rule = AlarmRule("reward", "rating")
        >>> _, decision = rule.update(rule.start(), 100, {"reward": 0.1, "rating": 0.9})
        >>> decision.alarm, decision.p_value  # one validation shows no trend
        (False, 1.0)
    """

    alarm: bool
    p_value: float | None
    reason: str


@dataclass(frozen=True)
class AlarmRule:
    """Rule that raises an alarm if the proxy rises and the held-out metric declines.

    Both trends must exceed what a random walk would show (`ctrlreward.functional.trend`). The test
    looks at the last `window` validations with new, finite values of both metrics.

    Args:
        proxy: Key of the metric that is optimised.
        held_out: Key of the metric that is not optimised.
        proxy_mode: "max" if higher is better, "min" if lower is better.
        held_out_mode: The same for the held-out metric.
        window: Number of validations per test, 4 to 16.
        level: Raise an alarm if both p-values are at most this.

    Raises:
        ValueError: Unknown mode, `window` or `level` out of range, or the same metric twice.

    Examples:
        >>> rule = AlarmRule("reward", "rating", window=4, level=0.125)
        >>> state = rule.start()
        >>> for i in range(4):
        ...     metrics = {"reward": 0.1 * i, "rating": 0.9 - 0.2 * i}
        ...     state, decision = rule.update(state, 100 * i, metrics)
        >>> decision.alarm, decision.p_value  # 1 of 8 patterns of signs always rises
        (True, 0.125)
    """

    proxy: str
    held_out: str
    proxy_mode: Mode = "max"
    held_out_mode: Mode = "max"
    window: int = WINDOW
    level: float = LEVEL

    def __post_init__(self) -> None:
        if self.proxy == self.held_out:
            raise ValueError(f"proxy and held_out are both {self.proxy!r}: give two metrics")
        check_direction("proxy_mode", self.proxy_mode)
        check_direction("held_out_mode", self.held_out_mode)
        if not 4 <= self.window <= LONGEST:
            raise ValueError(f"window = {self.window}: give 4 to {LONGEST} scored validations")
        smallest = 2.0 ** (1 - self.window)
        if not smallest <= self.level < 1:
            raise ValueError(
                f"level = {self.level}: the smallest p-value of a window of {self.window} is "
                f"{smallest:.2g}, so give at least that and less than 1"
            )

    def start(self) -> AlarmState:
        """Return the state before the first validation."""
        return AlarmState()

    def update(
        self,
        state: AlarmState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
    ) -> tuple[AlarmState, AlarmDecision]:
        """Return the new state, and whether there is an alarm after this validation.

        Args:
            state: State before this validation.
            step: Training step of this validation.
            metrics: Logged key → value.
            stale: Keys without a new value.

        Raises:
            ValueError: A key is not logged; lists those that are.
        """
        waiting = no_new_value([self.proxy, self.held_out], stale)
        if waiting:
            return state, AlarmDecision(state.alarm, None, waiting)
        pair = read(metrics, self.proxy), read(metrics, self.held_out)
        if not all(map(math.isfinite, pair)):
            reason = f"{self.proxy} is {pair[0]}, {self.held_out} is {pair[1]}"
            return state, AlarmDecision(state.alarm, None, reason)
        state = replace(state, values=(*state.values, pair)[-self.window :])
        decision = self._test(state)
        if decision.alarm:
            return state.alarmed(step), decision
        return replace(state, alarm=False), decision

    def resume(self, state: AlarmState, step: int) -> tuple[AlarmState, AlarmDecision]:
        """Repeat the last test of a resumed run, with the settings of this rule.

        Args:
            state: State restored from a checkpoint; it does not change.
            step: Step of the checkpoint.
        """
        if not state.alarm:
            return state, AlarmDecision(False, None, f"there was no alarm at step {step}")
        return state, self._test(state)

    def _test(self, state: AlarmState) -> AlarmDecision:
        window = state.values[-self.window :]
        proxy, held_out = zip(*window, strict=True)
        result = divergence(proxy, held_out, self.proxy_mode, self.held_out_mode)
        alarm = result.p_value <= self.level
        return AlarmDecision(alarm, result.p_value, self._describe(window, result, alarm))

    def _describe(
        self, window: tuple[tuple[float, float], ...], result: Divergence, alarm: bool
    ) -> str:
        if not alarm:
            return (
                f"p = {result.proxy:.4f} for a rise of {self.proxy}, p = {result.held_out:.4f} for "
                f"a decline of {self.held_out}: not both at most {self.level}"
            )
        (first, before), (last, after) = window[0], window[-1]
        return (
            f"{self.proxy} improved from {first:.4f} to {last:.4f} (p = {result.proxy:.4f}) while "
            f"{self.held_out} got worse, from {before:.4f} to {after:.4f} (p = "
            f"{result.held_out:.4f}), in the last {len(window)} scored validations: the policy may "
            "be gaming the reward"
        )
