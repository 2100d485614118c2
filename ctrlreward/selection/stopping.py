"""Early stopping: patience, evidence of a decline, thresholds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ctrlreward.arguments import Mode, check_direction, not_negative, sign_of
from ctrlreward.functional.sequential import PairedDifference, check_level, level_of_test
from ctrlreward.items import counted
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
        wait_count: Number of scores in a row that did not improve.
        last_score: Last score, NaN before the first.
        stopped_by: Cause of the stop: `"patience_exhausted"`, `"decline_shown"`,
            `"stopping_threshold"`, `"divergence_threshold"` or `"non_finite_metric"`; None if this
            rule did not stop.
        stopping_reason: Reason for the stop in words, "" before.
        stopped_step: Step of the stop, -1 before.
        last: The last validation with scores by prompt, or None.
        leader: Validation of `best` with scores by prompt, or None.
        compared: Number of validations with scores by prompt, without the first.
        failed: Number of NaN in a row at the end.

    Examples:
        >>> state = StopRule("score/sim").start()
        >>> state.best, state.wait_count
        (-inf, 0)
    """

    best: float
    wait_count: int = 0
    last_score: float = math.nan
    stopped_by: str | None = None
    stopping_reason: str = ""
    stopped_step: int = -1
    last: Validation | None = None
    leader: Validation | None = None
    compared: int = 0
    failed: int = 0

    def stopped(self, step: int, cause: str | None, reason: str) -> StopState:
        """Return the state with a stop."""
        return replace(self, stopped_by=cause, stopping_reason=reason, stopped_step=step)

    def running(self) -> StopState:
        """Return the state without its recorded stop."""
        return self.stopped(-1, None, "")


class StopDecision(NamedTuple):
    """Decision whether to stop training, with one of the causes of `StopState.stopped_by`.

    Examples:
        >>> StopDecision(False, None, "the run had not been stopped").stop
        False
    """

    stop: bool
    cause: str | None
    reason: str


@dataclass(frozen=True)
class StopRule:
    """Rule that stops training when a score no longer improves.

    Args:
        monitor: Key of the score.
        mode: "max" if higher is better, "min" if lower is better; None is "max" until `directed`.
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

    Raises:
        ValueError: Unknown mode or `min_delta`, or `level` out of range.

    Examples:
        >>> rule = StopRule("perplexity", mode="min", patience=2)
        >>> state = rule.start()
        >>> for step, value in [(100, 40.0), (200, 45.0), (300, 42.0)]:
        ...     state, decision = rule.update(state, step, {"perplexity": value})
        >>> decision.stop, state.wait_count
        (True, 2)
    """

    monitor: str
    mode: Mode | None = "max"
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
        if isinstance(self.min_delta, str) and self.min_delta != "noise":
            raise ValueError(f"min_delta must be a number or 'noise', got {self.min_delta!r}")

    @property
    def keys(self) -> list[str]:
        """Keys that the rule reads."""
        return [self.monitor]

    def directed(self, mode_of: ModeOf) -> StopRule:
        """Return the rule with the direction that the scorers of a run declare."""
        return replace(self, mode=mode_of(self.monitor, self.mode, "mode"))

    def start(self) -> StopState:
        """Return the state before the first score."""
        return StopState(best=-sign_of(self.mode) * math.inf)

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
            metrics: Logged key → value.
            stale: Keys without a new value.
            evidence: Logged key → one value for each held-out prompt, NaN if scoring failed.

        Raises:
            NotLogged: `monitor` is not logged; a ValueError that lists the logged keys.
        """
        waiting = no_new_value([self.monitor], stale)
        if waiting:
            return state, StopDecision(False, None, waiting)
        return self._judge(state, Validation.of(step, metrics, evidence, [self.monitor]))

    def resume(self, state: StopState, step: int) -> tuple[StopState, StopDecision]:
        """Judge the last score of a run resumed at a step again, with the settings of this rule.

        If they, such as more patience, would not have stopped it, the stop leaves the state.
        """
        running = state.running()
        if state.stopped_by is None:
            return running, StopDecision(False, None, "the run had not been stopped")
        # The last validation is counted again below.
        if state.stopped_by in (PATIENCE, DECLINE):
            running = replace(running, wait_count=state.wait_count - 1)
        if math.isnan(state.last_score):
            running = replace(running, failed=state.failed - 1)
            last = Validation(step, {self.monitor: math.nan})
        elif state.last is not None:
            before = None if state.compared == 0 else state.last  # any but None will do
            running = replace(running, last=before, compared=max(0, state.compared - 1))
            last = state.last
        else:
            last = Validation(step, {self.monitor: state.last_score})
        again, decision = self._judge(running, last)
        return (state if decision.stop else again), decision

    def _judge(self, state: StopState, now: Validation) -> tuple[StopState, StopDecision]:
        score = now.metrics[self.monitor]
        failed = state.failed + 1 if math.isnan(score) else 0
        state = replace(state, last_score=score, failed=failed)
        if failed:
            return self._fail(state, now.step)
        if now.evidence:
            compared = 0 if state.last is None else state.compared + 1
            state = replace(state, last=now, compared=compared)
        may_stop = now.step >= self.min_steps
        cause, why = self._beyond_limits(score) if may_stop else (None, "")
        if cause is None:
            if self._improves(state, now):
                reason = self._describe(f"improved from {state.best:.4f}", score, score)
                new = replace(state, best=score, wait_count=0, leader=now if now.evidence else None)
                return new, StopDecision(False, None, reason)
            state = replace(state, wait_count=state.wait_count + 1)
            cause, why = self._evidence(state, now) if may_stop else (None, "")
            why = why or (
                f"has not improved by more than {self.min_delta} in the last "
                f"{counted(state.wait_count, 'score')}"
            )
            if cause is None and may_stop and state.wait_count >= self.patience:
                cause = PATIENCE
        reason = self._describe(why, score, state.best)
        if cause is None:
            return state, StopDecision(False, None, reason)
        return state.stopped(now.step, cause, reason), StopDecision(True, cause, reason)

    def _fail(self, state: StopState, step: int) -> tuple[StopState, StopDecision]:
        """Judge a NaN."""
        reason = f"{self.monitor} is nan in the last {counted(state.failed, 'validation')}"
        few = state.failed <= max(self.patience, 1)
        if few or not self.check_finite or step < self.min_steps:
            return state, StopDecision(False, None, reason)
        return state.stopped(step, NON_FINITE, reason), StopDecision(True, NON_FINITE, reason)

    def _improves(self, state: StopState, now: Validation) -> bool:
        gain = sign_of(self.mode) * (now.metrics[self.monitor] - state.best)
        if not isinstance(self.min_delta, str):
            return gain > self.min_delta
        if not gain > 0 or state.leader is None or state.compared == 0:
            return gain > 0
        difference = self._gain(state.leader, now, level_of_test(self.level, state.compared))
        return difference is None or difference.low > 0

    def _evidence(self, state: StopState, now: Validation) -> tuple[str | None, str]:
        """Return cause and reason if the scores of the prompts show that training should stop."""
        k, leader = state.compared, state.leader
        if self.decline and k > 0 and leader is not None:
            difference = self._gain(leader, now, 2 * chosen_level(self.level, k))
            if difference is not None and difference.high < 0:
                told = describe(difference, self.mode)
                return DECLINE, f"is worse than at step {leader.step}, {told},"
        return None, ""

    def _gain(self, before: Validation, now: Validation, level: float) -> PairedDifference | None:
        """Return the difference with its interval, positive if now is better."""
        difference = before.differs(now, self.monitor, min(level, 0.5))
        if difference is None or self.mode != "min":
            return difference
        value, low, high, prompts = difference
        return PairedDifference(-value, -high, -low, prompts)

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

    def _describe(self, what: str, score: float, best: float) -> str:
        return f"{self.monitor} {what} (now {score:.4f}, best {best:.4f})"
