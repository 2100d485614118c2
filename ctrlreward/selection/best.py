"""Selection of the k best checkpoints of one score, subject to constraints on others."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.arguments import Mode, check_direction, checked_keywords, one_of, sign_of
from ctrlreward.functional.sequential import (
    PairedDifference,
    check_level,
    level_of_test,
    mean_interval,
    selection_optimism,
)
from ctrlreward.items import counted
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

ConstraintTest: TypeAlias = Literal["point", "unless_violated", "if_shown"]
Ties: TypeAlias = Literal["earliest"] | Mapping[str, Mode]

CHOICES = ("top_k", "ties_by", "constraint_test", "level")  # settings that a report repeats
LAST_STEP = "the last step"  # for the checkpoint, in the summary of a run that loaded none


class KeepDecision(NamedTuple):
    """Decision whether to keep the checkpoint of a validation.

    Attributes:
        dropped: Steps of kept checkpoints to remove.
        invalid: True if it is not kept because a metric is NaN or infinite.
        difference: Difference to the best of the other candidates, with its interval; None without
            scores by prompt.

    Examples:
        >>> rule = BestRule("score/sim")
        >>> _, decision = rule.update(BestState({100: 0.5}), 200, {"score/sim": 0.6})
        >>> decision.keep, decision.dropped
        (True, (100,))
    """

    keep: bool
    dropped: tuple[int, ...]
    reason: str
    invalid: bool = False
    difference: PairedDifference | None = None


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

    Examples:
        >>> BestState.from_dict(BestState({100: 0.5, 200: 0.6}).to_dict()).kept
        {100: 0.5, 200: 0.6}
    """

    kept: Mapping[int, float] = field(default_factory=dict)
    candidates: Mapping[int, Validation] = field(default_factory=dict)
    validations: int = 0


@checked_keywords()
@dataclass(frozen=True)
class BestRule:
    """Rule that keeps the checkpoints with the k best scores.

    A validation without a new score, with a NaN or infinite score, or outside of a constraint is
    not a candidate. A new score must be better than the worst kept one to replace it; of equal
    scores the oldest is replaced first.

    With scores by prompt (`evidence`), the reason says whether a score is distinguishable from the
    best one, by an interval of their difference that holds at all validations of the run together
    (`ctrlreward.functional.sequential`).

    Args:
        monitor: Key of the score.
        mode: "max" if higher is better, "min" if lower is better; None is "max" until `directed`.
        top_k: Number of checkpoints to keep, -1 for all.
        constraints: Key → smallest and largest allowed value, both inclusive, None for no bound.
            NaN and a key without a value violate the constraint. A key that this validation did
            not log counts with its last value.
        ties_by: Choice among checkpoints whose score is not distinguishable from the best one:
            "earliest", or one key → its better direction, {"policy/kl": "min"}. By default, the
            score itself decides.
        constraint_test: "point" compares the metric with the bounds. "unless_violated" rejects a
            validation only if the metric's interval is outside, "if_shown" unless it is inside;
            metrics without scores by prompt are compared with the bounds. The interval keeps its
            level for metrics whose bounds are in `ranges`; otherwise it is approximate, and too
            narrow for strongly skewed scores (`ctrlreward.functional.sequential.mean_interval`).
        level: Probability that any interval of the run misses its value, in (0, 1).
        ranges: Key → smallest and largest possible value, within which an interval stays.

    Raises:
        ValueError: Unknown mode, choice or test, `top_k` below -1, `level` out of range, or a
            constraint that is not a range.

    Examples:
        >>> rule = BestRule("sim", ties_by="earliest")
        >>> state = rule.start()
        >>> for step, scores in [(100, [0.2, 0.6, 0.5, 0.4] * 4), (200, [0.5, 0.2, 0.7, 0.4] * 4)]:
        ...     evidence = {"sim": scores}
        ...     metrics = {"sim": sum(scores) / 16}
        ...     state, decision = rule.update(state, step, metrics, evidence=evidence)
        >>> rule.best(state), decision.keep
        (100, False)
        >>> decision.reason
        'sim is 0.4500, not distinguishable from 0.4250 at step 100 (difference +0.0250, ...'
    """

    monitor: str
    mode: Mode | None = "max"
    top_k: int = 1
    constraints: Mapping[str, Bounds] = field(default_factory=dict)
    ties_by: Ties | None = None
    constraint_test: ConstraintTest = "point"
    level: float = 0.05
    ranges: Mapping[str, Bounds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_key("monitor", self.monitor)
        check_direction("mode", self.mode or "max")
        if not isinstance(self.constraints, Mapping):
            raise TypeError(
                "constraints must map keys to (smallest, largest), {'score/fail_rate': (None, "
                f"0.05)}}, got {self.constraints!r}"
            )
        for key, bounds in self.constraints.items():
            match bounds:
                case [low, high] if (low is None) != (high is None):
                    pass
                case [low, high] if low is not None and high is not None and low <= high:
                    pass
                case _:
                    raise ValueError(
                        f"constraints[{key!r}] must be (smallest, largest), None for at most one, "
                        f"got {bounds!r}"
                    )
        if self.top_k < -1:
            raise ValueError(f"top_k must be a count, or -1 to keep all, got {self.top_k}")
        one_of("constraint_test", self.constraint_test, ("point", "unless_violated", "if_shown"))
        check_level(self.level)
        if self.ties_by not in (None, "earliest"):
            if not isinstance(self.ties_by, Mapping) or len(self.ties_by) != 1:
                raise ValueError(
                    "ties_by must be 'earliest' or one key with its direction, {'policy/kl': "
                    f"'min'}}, got {self.ties_by!r}"
                )
            for key, direction in self.ties_by.items():
                check_direction(f"ties_by[{key!r}]", direction)

    @property
    def keys(self) -> list[str]:
        """Keys that the rule reads, the monitored one first."""
        ties = self.ties_by if isinstance(self.ties_by, Mapping) else ()
        return [self.monitor, *self.constraints, *ties]

    def directed(self, mode_of: ModeOf, ranges: Mapping[str, Bounds]) -> BestRule:
        """Return the rule with the direction and the ranges that the scorers of a run declare."""
        return replace(self, mode=mode_of(self.monitor, self.mode, "mode"), ranges=ranges)

    def start(self) -> BestState:
        """Return the state before the first validation."""
        return BestState()

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
        checks = self.check_constraints(state, metrics, stale, evidence)
        violation = next((check.reason for check in checks.values() if not check.met), "")
        if violation:
            return state, KeepDecision(False, (), violation)
        keys = [self.monitor, *(self.ties_by if isinstance(self.ties_by, Mapping) else ())]
        return self._rank(state, Validation.of(step, metrics, evidence, keys))

    def best(self, state: BestState) -> int | None:
        """Return the step of the best checkpoint, or the choice of `ties_by`; None without one."""
        return max(state.kept, key=self._preference(state), default=None)

    def worst(self, state: BestState) -> int | None:
        """Return the step that would be dropped first, None if none is kept."""
        return min(state.kept, key=self._preference(state), default=None)

    def explain(self, state: BestState) -> str:
        """Return the selected step in words, and the next best that it may not differ from."""
        step = self.best(state)
        if step is None:
            return f"no candidate among {counted(state.validations, 'validation')}"
        what = f"{self.monitor} is {state.kept[step]:.4f} at step {step}"
        chosen = state.candidates.get(step)
        if chosen is None or self.monitor not in chosen.evidence:
            return f"{what} (no scores by prompt)"
        values = chosen.evidence[self.monitor]
        failed = sum(not math.isfinite(value) for value in values)
        if failed:
            what += f" ({failed} of {len(values)} prompts without a score)"
        others = [seen for seen in state.candidates.values() if seen.step != step]
        refused = state.validations - len(state.candidates)
        if refused:
            what += f" (a constraint excludes {refused} of {state.validations} validations)"
        if not others:
            return f"{what}, the only candidate"
        unpaired = [each for each in others if not chosen.has_prompts_of(each, self.monitor)]
        if unpaired:
            what += (
                f" (compared by means, not by prompt, with {len(unpaired)} of "
                f"{counted(len(others), 'other candidate')})"
            )
            if len(unpaired) == len(others):
                return what
        sign = sign_of(self.mode)
        tied = [
            f"{other.metrics[self.monitor]:.4f} at step {other.step} ({describe(difference)})"
            for other in sorted(others, key=lambda v: -sign * v.metrics[self.monitor])
            if (difference := self._difference(state, other, chosen)) is not None
            and not difference.distinguishable
        ]
        if not tied:
            which = "the others" if unpaired else "all other candidates"
            return f"{what}, distinguishable from {which}"
        more = f" and {counted(len(tied) - 1, 'other candidate')}" if tied[1:] else ""
        how = f"; ties_by = {self.ties_by!r} decides" if self.ties_by else ""
        return f"{what}, not distinguishable from {tied[0]}{more}{how}"

    def optimism(self, state: BestState) -> float | None:
        """Estimate how much the best score is the best by chance, ≥ 0 on average.

        See `ctrlreward.functional.sequential.selection_optimism`. NaN if fewer than two prompts
        have scores; None without scores by prompt, or with fewer than two candidates.
        """
        seen = list(state.candidates.values())
        if len(seen) < 2 or not all(seen[0].has_prompts_of(e, self.monitor) for e in seen[1:]):
            return None
        rows = [each.evidence[self.monitor] for each in seen]
        return selection_optimism(sign_of(self.mode) * np.array(rows))

    def _rank(self, state: BestState, now: Validation) -> tuple[BestState, KeepDecision]:
        step, score = now.step, now.metrics[self.monitor]
        rivals = {other: value for other, value in state.kept.items() if other != step}
        seen = {other: value for other, value in state.candidates.items() if other != step}
        leader = self._leader(seen)
        difference = None if leader is None else self._difference(state, leader, now)
        # First of equals, so that a new score has to be better than an older one.
        state = replace(state, kept={step: score, **rivals}, candidates={**seen, step: now})
        worst_first = sorted(state.kept, key=self._preference(state))
        excess = 0 if self.top_k == -1 else max(0, len(worst_first) - self.top_k)
        gone = worst_first[:excess]
        keep, dropped = step not in gone, tuple(s for s in gone if s != step)
        kept = {s: value for s, value in {**rivals, step: score}.items() if s not in gone}
        reason = f"{self.monitor} is {score:.4f}"
        if leader is not None and difference is not None:
            told = "distinguishable" if difference.distinguishable else "not distinguishable"
            reason += (
                f", {told} from {leader.metrics[self.monitor]:.4f} at step {leader.step} "
                f"({describe(difference)})"
            )
        if not keep:
            reason += f", not among the best {self.top_k}"
        elif self.top_k != -1:
            reason += f", among the best {self.top_k}"
        new = replace(state, kept=kept)
        return new, KeepDecision(keep, dropped, reason, difference=difference)

    def _leader(self, candidates: Mapping[int, Validation]) -> Validation | None:
        """Return the candidate with the best score, the oldest of equals."""
        sign = sign_of(self.mode)
        return max(candidates.values(), key=lambda v: sign * v.metrics[self.monitor], default=None)

    def _difference(
        self, state: BestState, leader: Validation, now: Validation
    ) -> PairedDifference | None:
        return leader.differs(now, self.monitor, level_of_test(self.level, state.validations))

    def _preference(self, state: BestState) -> Callable[[int], tuple[bool, float]]:
        """Return the key by which kept steps are sorted, the best one last."""
        leader = self._leader(state.candidates)

        def is_tied(step: int) -> bool:
            if leader is None or step not in state.candidates:
                return False
            if step == leader.step:
                return True
            difference = self._difference(state, leader, state.candidates[step])
            return difference is not None and not difference.distinguishable

        def preference(step: int) -> tuple[bool, float]:
            if self.ties_by is None or not is_tied(step):
                return False, sign_of(self.mode) * state.kept[step]
            if isinstance(self.ties_by, str):
                return True, -float(step)
            ((key, direction),) = self.ties_by.items()
            return True, sign_of(direction) * state.candidates[step].metrics[key]

        return preference

    def check_constraints(
        self,
        state: BestState,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
        evidence: Evidence | None = None,
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
            row = None if self.constraint_test == "point" else (evidence or {}).get(key)
            if row is None or not math.isfinite(value):
                met = smallest <= value <= largest
                why = f"{key} is {value:.4f}, outside of [{smallest}, {largest}]"
            else:
                level = level_of_test(self.level, max(1, state.validations))
                _, bottom, top = mean_interval(row, level, self.ranges.get(key, (None, None)))
                why = f"{key} is {value:.4f} ({bottom:.4f} to {top:.4f}), "
                if self.constraint_test == "unless_violated":
                    met = not (top < smallest or bottom > largest)
                    why += f"outside of [{smallest}, {largest}]"
                else:
                    met = smallest <= bottom <= top <= largest
                    why += f"not shown to be in [{smallest}, {largest}]"
            checks[key] = ConstraintCheck(value, met, "" if met else why)
        return checks
