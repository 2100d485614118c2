"""Early stopping: patience, thresholds and non-finite scores."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ctrlreward.arguments import Mode, check_direction, sign_of
from ctrlreward.selection.metrics import no_new_value, read

PATIENCE = "patience_exhausted"
THRESHOLD = "stopping_threshold"
DIVERGENCE = "divergence_threshold"
NON_FINITE = "non_finite_metric"


@dataclass(frozen=True)
class StopState:
    """Scores seen so far, as far as later decisions need them.

    Attributes:
        best: Best score so far; before the first, minus infinity (plus infinity for mode "min").
        wait_count: Number of scores in a row that did not improve.
        last_score: Last score, NaN before the first.
        stopped_by: Cause of the stop: `"patience_exhausted"`, `"stopping_threshold"`,
            `"divergence_threshold"` or `"non_finite_metric"`; None if this rule did not stop.
        stopping_reason: Reason for the stop in words, "" before.
        stopped_step: Step of the stop, -1 before.

    Examples:
        >>> state = StopRule("score/sim").start()
        >>> state.best, state.wait_count
        (-inf, 0)
        >>> StopState.from_dict(StopState(best=0.5, last_score=0.4).to_dict())
        StopState(best=0.5, wait_count=0, last_score=0.4, stopped_by=None, ...)
    """

    best: float
    wait_count: int = 0
    last_score: float = math.nan
    stopped_by: str | None = None
    stopping_reason: str = ""
    stopped_step: int = -1

    def stopped(self, step: int, cause: str | None, reason: str) -> StopState:
        """Return the state with a stop recorded."""
        return replace(self, stopped_by=cause, stopping_reason=reason, stopped_step=step)

    def running(self) -> StopState:
        """Return the state without its recorded stop."""
        return self.stopped(-1, None, "")

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> StopState:
        """Restore a state from `to_dict`."""
        return cls(**state)


class StopDecision(NamedTuple):
    """Decision whether to stop training.

    Attributes:
        stop: Whether to stop.
        cause: One of the causes in `StopState.stopped_by`, None without a stop.
        reason: Explanation in words.

    Examples:
        >>> rule = StopRule("score/sim", stopping_threshold=0.9)
        >>> _, decision = rule.update(rule.start(), 100, {"score/sim": 0.95})
        >>> decision.stop, decision.cause
        (True, 'stopping_threshold')
    """

    stop: bool
    cause: str | None
    reason: str


@dataclass(frozen=True)
class StopRule:
    """Rule that stops training when a score no longer improves.

    Args:
        monitor: Key of the score.
        mode: "max" if higher is better, "min" if lower is better.
        patience: Number of scores in a row without improvement that stops training.
        min_delta: An improvement must exceed this, in units of the score.
        min_steps: Never stop at a smaller step. Scores before it are compared and counted as usual;
            NaN counts as no improvement.
        stopping_threshold: Stop at a score better than this.
        divergence_threshold: Stop at a score worse than this.
        check_finite: Stop at NaN or infinity.

    Raises:
        ValueError: Unknown mode.

    Examples:
        >>> rule = StopRule("perplexity", mode="min", patience=2)
        >>> state = rule.start()
        >>> for step, value in [(100, 40.0), (200, 45.0), (300, 42.0)]:
        ...     state, decision = rule.update(state, step, {"perplexity": value})
        >>> decision.stop, state.wait_count
        (True, 2)

        A resumed run with more patience goes on:

        >>> StopRule("perplexity", mode="min", patience=3).resume(state, 300)[1].stop
        False
    """

    monitor: str
    mode: Mode = "max"
    patience: int = 3
    min_delta: float = 0.0
    min_steps: int = 0
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    check_finite: bool = True

    def __post_init__(self) -> None:
        check_direction("mode", self.mode)

    def start(self) -> StopState:
        """Return the state before the first score."""
        return StopState(best=-sign_of(self.mode) * math.inf)

    def update(
        self,
        state: StopState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
    ) -> tuple[StopState, StopDecision]:
        """Return the new state and the decision after one more validation.

        Args:
            state: State before this validation.
            step: Training step of this validation.
            metrics: Logged key → value.
            stale: Keys without a new value.

        Raises:
            ValueError: `monitor` is not logged; lists the keys that are.
        """
        waiting = no_new_value([self.monitor], stale)
        if waiting:
            return state, StopDecision(False, None, waiting)
        return self._judge(state, step, read(metrics, self.monitor))

    def resume(self, state: StopState, step: int) -> tuple[StopState, StopDecision]:
        """Judge the last score of a resumed run again, with the settings of this rule.

        A run that had stopped stays stopped if this rule would stop it too. Otherwise, for example
        with more patience, the stop is removed from the state and the last score is counted.

        Args:
            state: State restored from a checkpoint.
            step: Step of the checkpoint.
        """
        running = state.running()
        if state.stopped_by is None:
            return running, StopDecision(False, None, "the run had not been stopped")
        if state.stopped_by == PATIENCE:  # the last score is counted again below
            running = replace(running, wait_count=state.wait_count - 1)
        again, decision = self._judge(running, step, state.last_score)
        return (state if decision.stop else again), decision

    def _judge(self, state: StopState, step: int, score: float) -> tuple[StopState, StopDecision]:
        state = replace(state, last_score=score)
        may_stop = step >= self.min_steps
        cause, why = self._beyond_limits(score) if may_stop else (None, "")
        if cause is None:
            if sign_of(self.mode) * (score - state.best) > self.min_delta:
                reason = self._describe(f"improved from {state.best:.4f}", score, score)
                return replace(state, best=score, wait_count=0), StopDecision(False, None, reason)
            state = replace(state, wait_count=state.wait_count + 1)
            why = (
                f"has not improved by more than {self.min_delta} in the last "
                f"{state.wait_count} scores"
            )
            cause = PATIENCE if may_stop and state.wait_count >= self.patience else None
        reason = self._describe(why, score, state.best)
        if cause is None:
            return state, StopDecision(False, None, reason)
        return state.stopped(step, cause, reason), StopDecision(True, cause, reason)

    def _beyond_limits(self, score: float) -> tuple[str | None, str]:
        """Return cause and reason of an immediate stop, `(None, "")` if there is none."""
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
