"""Early stopping: patience, evidence of a decline, thresholds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal, NamedTuple

from ctrlreward.arguments import Mode, check_direction, counted, not_negative, sign_of
from ctrlreward.functional.sequential import PairedDifference, check_level, level_of_test
from ctrlreward.selection.metrics import (
    Evidence,
    ModeOf,
    State,
    Validation,
    check_key,
    chosen_level,
    describe,
    no_new_value,
)

PATIENCE = "patience_exhausted"
DECLINE = "decline_shown"
THRESHOLD = "stopping_threshold"
DIVERGENCE = "divergence_threshold"
NON_FINITE = "non_finite_metric"


@dataclass(frozen=True)
class StopState(State):
    """Scores so far, as needed by later decisions.

    Attributes:
        best: Best score so far; before the first, minus infinity (plus infinity for mode "min").
        stopped_by: Cause of the stop, one of the constants of this module; None before.
        stopped_step: Step of the stop, -1 before.
        leader: Validation of `best` with scores by prompt, or None.
        compared: Number of validations with scores by prompt, without the first; -1 before it.
        failed: Number of NaN in a row at the end.
    """

    best: float
    wait_count: int = 0
    stopped_by: str | None = None
    stopping_reason: str = ""
    stopped_step: int = -1
    leader: Validation | None = None
    compared: int = -1
    failed: int = 0

    @property
    def ended(self) -> bool:
        return self.stopped_by is not None

    def stopped(self, step: int, cause: str | None, reason: str) -> StopState:
        """Return the state with a stop."""
        return replace(self, stopped_by=cause, stopping_reason=reason, stopped_step=step)

    def running(self) -> StopState:
        """Return the state without its recorded stop."""
        return self.stopped(-1, None, "")


class StopDecision(NamedTuple):
    """Decision whether to stop training, with a cause as in `StopState`."""

    stop: bool
    cause: str | None
    reason: str


@dataclass(frozen=True)
class StopRule:
    """Rule that stops training when a score no longer improves.

    Args:
        monitor: Key of the score.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that a
            scorer of the trainer declares for the key, else to "max".
        patience: Number of scores in a row without improvement that stops training.
        min_delta: An improvement must exceed this, in units of the score. "noise" counts an
            improvement only if the scores of the prompts show it: the interval of the difference to
            the best score is above 0. Without scores by prompt, "noise" is 0.
        min_steps: Never stop at a smaller step. Scores before it are compared and counted as usual.
        stopping_threshold: Stop at a score better than this.
        divergence_threshold: Stop at a score worse than this.
        check_finite: Stop at infinity, and at more than `patience` NaN in a row, at least two. A
            NaN (no sample could be scored) is not counted as a score.
        decline: Stop as soon as the scores of the prompts show that this score is worse than the
            best one.
        level: Probability that any interval of the run misses its difference, in (0, 1)
            (`ctrlreward.functional.sequential`).

    Examples:
        >>> rule = StopRule("perplexity", mode="min", patience=2)
        >>> state = rule.start()
        >>> for step, value in [(100, 40.0), (200, 45.0), (300, 42.0)]:
        ...     state, decision = rule.update(state, step, {"perplexity": value})
        >>> decision.stop, state.wait_count
        (True, 2)
    """

    monitor: str
    mode: Mode | None = None
    patience: int = 3
    min_delta: float | Literal["noise"] = 0.0
    min_steps: int = 0
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    check_finite: bool = True
    decline: bool = False
    level: float = 0.05

    def __post_init__(self) -> None:
        check_key("monitor", self.monitor)
        check_direction("mode", self.mode or "max")
        check_level(self.level)
        not_negative("patience", self.patience)
        delta: Any = self.min_delta
        if delta != "noise" and not (isinstance(delta, Real) and math.isfinite(delta)):
            raise ValueError(f"min_delta must be a number or 'noise', got {self.min_delta!r}")

    @cached_property
    def keys(self) -> list[str]:
        return [self.monitor]

    def directed(self, mode_of: ModeOf) -> StopRule:
        return replace(self, mode=mode_of(self.monitor, self.mode, "mode"))

    def start(self) -> StopState:
        return StopState(best=-sign_of(self.mode) * math.inf)

    def renewed(self, state: StopState, changed: Collection[str]) -> StopState:
        """Return the state without earlier scores, since the keys `changed` their prompts."""
        return replace(state, best=self.start().best, wait_count=0, leader=None)

    def update(
        self,
        state: StopState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
        evidence: Evidence | None = None,
    ) -> tuple[StopState, StopDecision]:
        """Return the new state and the decision after one more validation.

        Args:
            state: State before this validation.
            step: Training step of this validation.
            metrics: Logged key → value; a `NotLogged` without the key of the rule.
            stale: Keys without a new value.
            evidence: Logged key → one value for each held-out prompt, NaN if scoring failed.
        """
        waiting = no_new_value([self.monitor], stale)
        if waiting:
            return state, StopDecision(False, None, waiting)
        now = Validation.of(step, metrics, evidence, [self.monitor])
        new, cause, reason = self._decide(state, now)
        if cause is not None:
            new = new.stopped(step, cause, reason)
        return new, StopDecision(cause is not None, cause, reason)

    def _decide(self, state: StopState, now: Validation) -> tuple[StopState, str | None, str]:
        """Return the scores so far, the cause of a stop or None, and the reason in words."""
        score, may_stop = now.metrics[self.monitor], now.step >= self.min_steps
        if math.isnan(score):
            state = replace(state, failed=state.failed + 1)
            too_many = self.check_finite and state.failed > max(self.patience, 1)
            reason = f"{self.monitor} is nan in the last {counted(state.failed, 'validation')}"
            return state, NON_FINITE if too_many and may_stop else None, reason
        compared = state.compared + 1 if now.evidence else state.compared
        state = replace(state, failed=0, compared=compared)
        cause, what = self._beyond_limits(score) if may_stop else (None, "")
        if cause is not None:
            return state, cause, self._describe(what, score, state.best)
        failed = state.leader.failures(now, self.monitor) if state.leader else ""
        if self._improves(state, now):
            reason = self._describe(f"improved from {state.best:.4f}", score, score, failed)
            leader = now if now.evidence else None
            return replace(state, best=score, wait_count=0, leader=leader), None, reason
        state = replace(state, wait_count=state.wait_count + 1)
        what = self._decline(state, now) if may_stop else ""
        if what:
            return state, DECLINE, self._describe(what, score, state.best)
        waits = counted(state.wait_count, "score")
        what = f"has not improved by more than {self.min_delta} in the last {waits}"
        exhausted = may_stop and state.wait_count >= self.patience
        reason = self._describe(what, score, state.best, failed)
        return state, PATIENCE if exhausted else None, reason

    def _improves(self, state: StopState, now: Validation) -> bool:
        change = now.metrics[self.monitor] - state.best
        if state.leader is not None:
            change = state.leader.change(now, self.monitor)
        gain = sign_of(self.mode) * change
        if not isinstance(self.min_delta, str):
            return gain > self.min_delta
        if not gain > 0 or state.leader is None or state.compared < 1:
            return gain > 0
        level = level_of_test(self.level, state.compared)
        difference = state.leader.differs(now, self.monitor, level)
        return difference is None or _is_shown(difference, sign_of(self.mode))

    def _decline(self, state: StopState, now: Validation) -> str:
        """Return the reason if the scores of the prompts show a decline, else ""."""
        k, leader = state.compared, state.leader
        if not self.decline or k < 1 or leader is None:
            return ""
        level = 2 * chosen_level(self.level, k)  # one side of the interval decides
        difference = leader.differs(now, self.monitor, min(level, 0.5))
        if difference is None or not _is_shown(difference, -sign_of(self.mode)):
            return ""
        return f"is worse than at step {leader.step}, {describe(difference)},"

    def _beyond_limits(self, score: float) -> tuple[str | None, str]:
        """Return cause and reason of an immediate stop, else `(None, "")`."""
        sign = sign_of(self.mode)
        stopping, divergence = self.stopping_threshold, self.divergence_threshold
        if self.check_finite and not math.isfinite(score):
            return NON_FINITE, f"is {score}"
        if stopping is not None and sign * score > sign * stopping:
            return THRESHOLD, f"reached {stopping}"
        if divergence is not None and sign * score < sign * divergence:
            return DIVERGENCE, f"passed {divergence}"
        return None, ""

    def _describe(self, what: str, score: float, best: float, failed: str = "") -> str:
        return f"{self.monitor} {what} (now {score:.4f}, best {best:.4f}{failed})"


def _is_shown(difference: PairedDifference, sign: float) -> bool:
    return difference.low > 0 if sign > 0 else difference.high < 0
