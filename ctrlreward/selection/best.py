"""Selection of the k best checkpoints of one score, subject to constraints on others."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, cmp_to_key
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.arguments import Mode, check_direction, counted, sign_of
from ctrlreward.functional.sequential import PairedDifference, check_level, level_of_test
from ctrlreward.selection.metrics import (
    Bounds,
    Evidence,
    ModeOf,
    State,
    Validation,
    check_key,
    describe,
    no_new_value,
    read,
)

LAST_STEP = "the last step"  # for the checkpoint, in the summary of a run that loaded none


class KeepDecision(NamedTuple):
    """Decision whether to keep the checkpoint of a validation.

    Attributes:
        dropped: Steps of kept checkpoints to remove.
        invalid: True if it is not kept because a metric is NaN or infinite.
    """

    keep: bool
    dropped: tuple[int, ...]
    reason: str
    invalid: bool = False


class ConstraintCheck(NamedTuple):
    """Value of a constrained metric, NaN before the first, and why the constraint is not met."""

    value: float
    met: bool
    reason: str


@dataclass(frozen=True)
class BestState(State):
    """Checkpoints kept so far, and the candidates for selection.

    Attributes:
        kept: Step → score, oldest first.
        candidates: Step → validation that met the constraints, with its scores by prompt.
        validations: Number of validations judged so far.
    """

    kept: Mapping[int, float] = field(default_factory=dict)
    candidates: Mapping[int, Validation] = field(default_factory=dict)
    validations: int = 0


@dataclass(frozen=True)
class BestRule:
    """Rule that keeps the checkpoints with the k best scores.

    A validation without a new, finite score, or outside of a constraint is not a candidate. A new
    score must be better than the worst kept one to replace it; of equal scores the oldest is
    replaced first. Of two validations that failed on different prompts, the prompts that both have
    decide. With scores by prompt (`evidence`), the reason says whether a score is
    distinguishable from the best one, by an interval of their difference that holds at all
    validations of the run together (`ctrlreward.functional.sequential`).

    Args:
        monitor: Key of the score.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that a
            scorer of the trainer declares for the key, else to "max".
        top_k: Number of checkpoints to keep, -1 for all.
        constraints: Key → smallest and largest allowed value, both inclusive, None for no bound.
            NaN and a key without a value violate the constraint. A key that this validation did
            not log counts with its last value.
        level: Probability that any interval of the run misses its difference, in (0, 1).

    Examples:
        >>> rule = BestRule("sim")
        >>> state, _ = rule.update(rule.start(), 100, {"sim": 0.5})
        >>> state, decision = rule.update(state, 200, {"sim": 0.6})
        >>> rule.best(state), decision.keep, decision.dropped
        (200, True, (100,))
    """

    monitor: str
    mode: Mode | None = None
    top_k: int = 1
    constraints: Mapping[str, Bounds] = field(default_factory=dict)
    level: float = 0.05

    def __post_init__(self) -> None:
        check_key("monitor", self.monitor)
        check_direction("mode", self.mode or "max")
        if not isinstance(self.constraints, Mapping):
            raise TypeError(f"constraints must be key → (low, high), got {self.constraints!r}")
        for key, bounds in self.constraints.items():
            pair = tuple(bounds) if isinstance(bounds, Sequence) else ()
            ends = [end for end in pair if end is not None]
            numbers = ends and all(isinstance(end, Real) for end in ends)
            if len(pair) != 2 or not numbers or not ends[0] <= ends[-1]:
                raise ValueError(
                    f"constraints[{key!r}] must be (low, high), at most one None, got {bounds!r}"
                )
        if self.top_k < -1:
            raise ValueError(f"top_k must be a count, or -1 to keep all, got {self.top_k}")
        check_level(self.level)

    @cached_property
    def keys(self) -> list[str]:
        return [self.monitor, *self.constraints]

    def directed(self, mode_of: ModeOf) -> BestRule:
        return replace(self, mode=mode_of(self.monitor, self.mode, "mode"))

    def start(self) -> BestState:
        return BestState()

    def renewed(self, state: BestState, changed: Collection[str]) -> BestState:
        """Return the state without candidates, if the monitored key `changed` its prompts."""
        return replace(state, kept={}, candidates={}) if self.monitor in changed else state

    def update(
        self,
        state: BestState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
        evidence: Evidence | None = None,
    ) -> tuple[BestState, KeepDecision]:
        """Return the new state, and whether to keep the checkpoint; arguments as in `StopRule`.

        A step kept before is judged again.
        """
        waiting = no_new_value([self.monitor], stale)
        if waiting:
            return state, KeepDecision(False, (), waiting)
        score = read(metrics, self.monitor)
        if not math.isfinite(score):
            return state, KeepDecision(False, (), f"{self.monitor} is {score}", invalid=True)
        state = replace(state, validations=state.validations + 1)
        checks = self.check_constraints(metrics, stale)
        violation = next((check.reason for check in checks.values() if not check.met), "")
        if violation:
            return state, KeepDecision(False, (), violation)
        return self._rank(state, Validation.of(step, metrics, evidence, [self.monitor]))

    def best(self, state: BestState) -> int | None:
        """Return the step of the best checkpoint, None if none is kept."""
        return max(state.kept, key=self._order(state.kept, state.candidates), default=None)

    def steps(self, state: BestState) -> list[int]:
        """Return the steps of the candidates so far."""
        return list(state.candidates)

    def available(self, state: BestState, steps: Collection[int]) -> BestState:
        """Return the state without checkpoints that are no longer among `steps`, those on disk.

        If one that was kept is lost, the best of the others on disk replace it.
        """
        lost = state.kept.keys() - {*steps}
        if not lost:
            return state
        left = {step: v for step, v in state.candidates.items() if step not in lost}
        kept: Mapping[int, float] = {}
        for step in sorted(left.keys() & {*steps}):
            kept, _ = self._keep(kept, left, step)
        return replace(state, candidates=left, kept=kept)

    def explain(self, state: BestState) -> str:
        """Return the selected step in words, and the next best that it may not differ from."""
        step = self.best(state)
        if step is None:
            return f"no candidate among {counted(state.validations, 'validation')}"
        what = f"{self.monitor} is {state.kept[step]:.4f} at step {step}"
        chosen = state.candidates.get(step)
        if chosen is None or self.monitor not in chosen.evidence:
            return f"{what} (no scores by prompt)"
        refused = state.validations - len(state.candidates)
        if refused:
            what += f" (a constraint excludes {refused} of {state.validations} validations)"
        others = [other for other in state.candidates.values() if other.step != step]
        if not others:
            return f"{what}, the only candidate"
        level = level_of_test(self.level, state.validations)
        differences = [(other, other.differs(chosen, self.monitor, level)) for other in others]
        paired = [(other, difference) for other, difference in differences if difference]
        if len(paired) < len(others):
            means = f"{len(others) - len(paired)} of {counted(len(others), 'other candidate')}"
            what += f" (compared by means, not by prompt, with {means})"
        if not paired:
            return what
        tied = [pair for pair in paired if not pair[1].distinguishable]
        if not tied:
            return (
                f"{what}, distinguishable from {'all' if paired == differences else 'the'} others"
            )
        sign = sign_of(self.mode)
        nearest, difference = max(tied, key=lambda pair: sign * pair[0].metrics[self.monitor])
        more = f" and {counted(len(tied) - 1, 'other candidate')}" if tied[1:] else ""
        return f"{what}, {self._against(nearest, difference)}{more}"

    def _against(self, other: Validation, difference: PairedDifference) -> str:
        told = "distinguishable" if difference.distinguishable else "not distinguishable"
        value = other.metrics[self.monitor]
        return f"{told} from {value:.4f} at step {other.step} ({describe(difference)})"

    def _rank(self, state: BestState, now: Validation) -> tuple[BestState, KeepDecision]:
        step, score = now.step, now.metrics[self.monitor]
        rivals = {other: value for other, value in state.candidates.items() if other != step}
        # The oldest of equals.
        best = max(rivals, key=self._order({}, rivals), default=None)
        leader = None if best is None else rivals[best]
        level = level_of_test(self.level, state.validations)
        difference = leader.differs(now, self.monitor, level) if leader else None
        kept, gone = self._keep(state.kept, {**rivals, step: now}, step)
        reason = f"{self.monitor} is {score:.4f}"
        if leader is not None and difference is not None:
            reason += f", {self._against(leader, difference)}"
        if step in gone:
            reason += f", not among the best {self.top_k}"
        elif self.top_k != -1:
            reason += f", among the best {self.top_k}"
        dropped = tuple(other for other in gone if other != step)
        new = replace(state, kept=kept, candidates={**rivals, step: now})
        return new, KeepDecision(step not in gone, dropped, reason)

    def _order(self, kept: Mapping[int, float], candidates: Mapping[int, Validation]) -> Any:
        """Return a key that sorts steps from worst to best, pair by pair (`Validation.change`)."""
        plain = {step: Validation(step, {self.monitor: value}) for step, value in kept.items()}
        known, sign = {**plain, **candidates}, sign_of(self.mode)
        return cmp_to_key(lambda a, b: int(np.sign(sign * known[b].change(known[a], self.monitor))))

    def _keep(
        self, kept: Mapping[int, float], candidates: Mapping[int, Validation], step: int
    ) -> tuple[dict[int, float], list[int]]:
        """Return the best steps with their scores, and the others, if a candidate is added."""
        rivals = {other: value for other, value in kept.items() if other != step}
        score = candidates[step].metrics[self.monitor]
        # First of equals, so that a new score has to be better than an older one.
        scores = {step: score, **rivals}
        worst_first = sorted(scores, key=self._order(rivals, candidates))
        gone = worst_first[: 0 if self.top_k == -1 else max(0, len(scores) - self.top_k)]
        return {s: v for s, v in {**rivals, step: score}.items() if s not in gone}, gone

    def check_constraints(
        self, metrics: Mapping[str, float], stale: Collection[str] = ()
    ) -> dict[str, ConstraintCheck]:
        """Return for each constraint whether a validation meets it; arguments as in `update`."""
        checks = {}
        for key, (low, high) in self.constraints.items():
            if key in stale and key not in metrics:
                checks[key] = ConstraintCheck(math.nan, False, f"{key} has no value yet")
                continue
            value = read(metrics, key)
            smallest = -math.inf if low is None else low
            largest = math.inf if high is None else high
            met = smallest <= value <= largest
            why = "" if met else f"{key} is {value:.4f}, outside of [{smallest}, {largest}]"
            checks[key] = ConstraintCheck(value, met, why)
        return checks
