"""Alarm on reward hacking: a proxy improves while held-out metrics decline."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np

from ctrlreward.arguments import Mode, check_direction, not_negative, one_of, sign_of
from ctrlreward.functional.sequential import (
    Floats,
    check_level,
    level_of_test,
    paired_difference,
    rise_p_value,
)
from ctrlreward.selection.metrics import (
    Evidence,
    ModeOf,
    State,
    Validation,
    check_key,
    chosen_level,
    describe,
    no_new_value,
    read,
)

HeldOutMode: TypeAlias = Literal["max", "min", "drift"]
Reference: TypeAlias = Literal["first", "best"]

# Probability of a false alarm in a whole run, with scores by prompt.
LEVEL = 0.05
# Half of a small effect in Cohen (1988). A decline of a tenth of the spread between prompts
# is within the disagreement of two readers; with 2,000 prompts it would be significant at once.
MARGIN = 0.1


@dataclass(frozen=True)
class AlarmState(State):
    """The reference of later validations, and whether there is an alarm.

    Attributes:
        alarm: Whether the last scored validation raised an alarm.
        alarm_step: Step of the first alarm, -1 before.
        references: Held-out key → its reference validation.
        tests: Number of tests so far.
    """

    alarm: bool = False
    alarm_step: int = -1
    references: Mapping[str, Validation] = field(default_factory=dict)
    tests: int = 0

    @property
    def ended(self) -> bool:
        return self.alarm


class AlarmDecision(NamedTuple):
    """Result of the test after a validation, or without a new one of the last test.

    Attributes:
        p_value: Smallest level of the whole run at which this test would raise an alarm, None
            without a test.
        untestable: True if a held-out metric has no scores by prompt.
    """

    alarm: bool
    p_value: float | None
    reason: str
    untestable: bool = False


@dataclass(frozen=True)
class AlarmRule:
    """Rule that raises an alarm if the proxy has risen and a held-out metric has declined.

    Each validation is compared with a reference validation, prompt by prompt
    (`ctrlreward.functional.sequential`). So held-out metrics need scores by prompt (`evidence`),
    as a `GenerationScorer` has them; without, there is no test and no alarm. Of the proxy, the mean
    is enough.

    Args:
        proxy: Key of the optimised metric.
        held_out: Key of a metric that is not optimised, several keys, or key → "max" if higher is
            better, "min" if lower is better, "drift" if any change is a decline (length, KL). With
            several, each is tested at its share of the level (Bonferroni).
        proxy_mode: "max" if higher is better, "min" if lower is better. Defaults to the direction
            that a scorer of the trainer declares for the key, else to "max".
        held_out_mode: The same for held-out metrics without a mode.
        level: Probability of a false alarm in the whole run, in (0, 1).
        reference: Validation to compare with: "first", or "best", the one with the best held-out
            mean so far, which notices a decline after a rise.
        margin: Smallest decline that matters, in units of the metric, or held-out key → decline.
            Defaults to a tenth of the standard deviation between prompts at the reference.

    Examples:
        >>> rule, state = AlarmRule("reward", "rating"), AlarmState()
        >>> for step in (100, 200):
        ...     evidence = {"rating": np.linspace(0, 1, 24) - step / 100}
        ...     metrics = {"reward": step, "rating": -step}
        ...     state, decision = rule.update(state, step, metrics, evidence=evidence)
        >>> decision.alarm
        True
    """

    proxy: str
    held_out: str | Sequence[str] | Mapping[str, HeldOutMode]
    proxy_mode: Mode | None = None
    held_out_mode: HeldOutMode | None = None
    level: float = LEVEL
    reference: Reference = "first"
    margin: float | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_key("proxy", self.proxy)
        check_direction("proxy_mode", self.proxy_mode or "max")
        if not isinstance(self.held_out, Mapping):
            keys = [self.held_out] if isinstance(self.held_out, str) else self.held_out
            object.__setattr__(self, "held_out", dict.fromkeys(keys, self.held_out_mode))
        modes = {f"held_out[{key!r}]": mode for key, mode in self.modes.items()}
        for argument, mode in {"held_out_mode": self.held_out_mode or "max", **modes}.items():
            if mode != "drift":
                check_direction(argument, mode)
        if not modes:
            raise ValueError("held_out is empty, must be at least one key")
        if self.proxy in self.modes:
            raise ValueError(f"proxy and held_out must differ, got {self.proxy!r} for both")
        one_of("reference", self.reference, ("first", "best"))
        check_level(self.level)
        margins = self.margin if isinstance(self.margin, Mapping) else {"": self.margin or 0.0}
        for key, margin in margins.items():
            if key:
                one_of("a key of margin", key, self.modes)
            not_negative("margin", margin)

    @cached_property
    def keys(self) -> list[str]:
        return [self.proxy, *self.held_out]

    @cached_property
    def modes(self) -> dict[str, HeldOutMode]:
        """Mode of each held-out metric."""
        given = cast("Mapping[str, HeldOutMode | None]", self.held_out)
        return {key: mode or "max" for key, mode in given.items()}

    @cached_property
    def signs(self) -> dict[str, float]:
        """Factor of each key that makes higher better; 0.0 for a drift."""
        modes = {self.proxy: self.proxy_mode, **self.modes}
        return {key: 0.0 if mode == "drift" else sign_of(mode) for key, mode in modes.items()}

    def directed(self, mode_of: ModeOf) -> AlarmRule:
        given = cast("Mapping[str, HeldOutMode | None]", self.held_out)
        modes: dict[str, HeldOutMode] = {
            key: "drift" if mode == "drift" else mode_of(key, mode, f"held_out[{key!r}]")
            for key, mode in given.items()
        }
        proxy_mode = mode_of(self.proxy, self.proxy_mode, "proxy_mode")
        return replace(self, held_out=modes, proxy_mode=proxy_mode)

    def start(self) -> AlarmState:
        return AlarmState()

    def renewed(self, state: AlarmState, changed: Collection[str]) -> AlarmState:
        """Return the state without references, since the keys `changed` their prompts."""
        return replace(state, references={})

    def update(
        self,
        state: AlarmState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
        evidence: Evidence | None = None,
    ) -> tuple[AlarmState, AlarmDecision]:
        """Return the new state, and whether there is an alarm; arguments as in `StopRule`."""
        keys = self.keys
        waiting = no_new_value(keys, stale)
        if waiting:
            return state, AlarmDecision(state.alarm, None, waiting)
        row = tuple(read(metrics, key) for key in keys)
        if not all(map(math.isfinite, row)):
            reason = ", ".join(f"{key} is {value}" for key, value in zip(keys, row, strict=True))
            return state, AlarmDecision(state.alarm, None, reason)
        lacking = [key for key in self.modes if key not in (evidence or {})]
        if lacking:
            reason = f"{', '.join(lacking)} without scores by prompt, which an alarm needs"
            return state, AlarmDecision(state.alarm, None, reason, untestable=True)
        new, p_value, reason = self._compare(state, Validation.of(step, metrics, evidence, keys))
        alarm = p_value <= self.level
        first = step if alarm and state.alarm_step < 0 else state.alarm_step
        return replace(new, alarm=alarm, alarm_step=first), AlarmDecision(alarm, p_value, reason)

    def _compare(self, state: AlarmState, now: Validation) -> tuple[AlarmState, float, str]:
        """Return references and tests so far, the p-value for the run and a reason."""
        before = state.references
        rows = {key: row for key in before if (row := before[key].paired(now, key))}
        if rows.keys() != self.modes.keys():
            begun = before or state.tests
            what = "other held-out prompts" if begun else "the first validation"
            reason = f"{what}: later validations are compared with step {now.step}"
            return replace(state, references=dict.fromkeys(self.modes, now)), 1.0, reason
        k = state.tests + 1
        share = chosen_level(1.0, k) if self.reference == "best" else level_of_test(1.0, k)
        p_values = {
            key: max(self._rise(before[key], now), len(self.modes) * self._decline(key, *pair))
            for key, pair in rows.items()
        }
        key = min(p_values, key=lambda name: p_values[name])
        p_value = min(1.0, p_values[key] / share)
        level = self.level * share / len(self.modes)
        difference = paired_difference(rows[key][1], minus=rows[key][0], level=level)
        what = f"{key} since step {before[key].step}: {describe(difference)}"
        reason = self._explain(before[key], now, what, p_value)
        references = dict(before)
        if self.reference == "best":
            for name in self.modes:
                if self.signs[name] * before[name].change(now, name) > 0:
                    references[name] = now
        return replace(state, references=references, tests=k), p_value, reason

    def _rise(self, before: Validation, now: Validation) -> float:
        sign, key = self.signs[self.proxy], self.proxy
        # Without scores by prompt, its mean decides.
        rows = before.paired(now, key)
        if rows is None:
            return 0.0 if sign * now.metrics[key] > sign * before.metrics[key] else 1.0
        return rise_p_value(sign * rows[0], sign * rows[1])

    def _decline(self, key: str, before: Floats, after: Floats) -> float:
        margin = self.margin.get(key) if isinstance(self.margin, Mapping) else self.margin
        if margin is None:
            valid = before[np.isfinite(before)]
            margin = MARGIN * float(valid.std(ddof=1)) if len(valid) > 1 else 0.0
        signs = (self.signs[key],) if self.signs[key] else (1.0, -1.0)
        falls = [rise_p_value(sign * after, sign * before, margin) for sign in signs]
        return min(1.0, len(signs) * min(falls))

    def _explain(self, before: Validation, now: Validation, what: str, p_value: float) -> str:
        test = f"p = {p_value:.2g} at a level of {self.level} for the whole run"
        if p_value > self.level:
            return f"{what} ({test})"
        return (
            f"{self.proxy} improved from {before.metrics[self.proxy]:.4f} to "
            f"{now.metrics[self.proxy]:.4f}, while {what} ({test}): the policy may be gaming the "
            "reward"
        )
