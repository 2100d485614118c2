"""Selection of the k best checkpoints of one score, subject to constraints on others."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ctrlreward.arguments import Mode, check_direction, sign_of
from ctrlreward.selection.metrics import no_new_value, read

Bounds: TypeAlias = tuple[float | None, float | None]


class KeepDecision(NamedTuple):
    """Decision whether to keep the checkpoint of a validation.

    Attributes:
        keep: Whether to keep it.
        dropped: Steps of checkpoints kept so far that have to go.
        reason: Explanation in words.
        invalid: True if it is not kept because a metric is NaN or infinite.

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


@dataclass(frozen=True)
class BestState:
    """Checkpoints kept so far.

    Attributes:
        kept: Step → score, oldest first.

    Examples:
        >>> BestState.from_dict(BestState({100: 0.5, 200: 0.6}).to_dict())
        BestState(kept={100: 0.5, 200: 0.6})
    """

    kept: Mapping[int, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"kept": dict(self.kept)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> BestState:
        """Restore a state from `to_dict`, also after a round trip through JSON."""
        return cls({int(step): score for step, score in state["kept"].items()})


@dataclass(frozen=True)
class BestRule:
    """Rule that keeps the checkpoints with the k best scores.

    A validation without a new score, with a NaN or infinite score, or outside of a constraint is
    not a candidate. A new score must be better than the worst kept one to replace it; of equal
    scores the oldest is replaced first.

    Args:
        monitor: Key of the score.
        mode: "max" if higher is better, "min" if lower is better.
        top_k: Number of checkpoints to keep, -1 for all.
        constraints: Key → smallest and largest allowed value, both inclusive, None for no bound.
            NaN meets no constraint, nor does a key that has no value yet. A stale value counts.

    Raises:
        ValueError: Unknown mode, or `top_k` below -1.

    Examples:
        >>> rule = BestRule("score/sim", top_k=2, constraints={"repetition": (None, 0.2)})
        >>> state = rule.start()
        >>> for step, sim, repetition in [(100, 0.5, 0.1), (200, 0.9, 0.4), (300, 0.6, 0.1)]:
        ...     metrics = {"score/sim": sim, "repetition": repetition}
        ...     state, decision = rule.update(state, step, metrics)
        >>> state.kept
        {100: 0.5, 300: 0.6}
        >>> rule.best(state)
        300
    """

    monitor: str
    mode: Mode = "max"
    top_k: int = 1
    constraints: Mapping[str, Bounds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_direction("mode", self.mode)
        if self.top_k < -1:
            raise ValueError(f"top_k = {self.top_k}: give a count, or -1 to keep all")

    def start(self) -> BestState:
        """Return the state before the first validation."""
        return BestState()

    def update(
        self,
        state: BestState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
    ) -> tuple[BestState, KeepDecision]:
        """Return the new state, and whether to keep the checkpoint of this validation.

        Args:
            state: State before this validation.
            step: Training step of this validation. A step that was kept before is judged again.
            metrics: Logged key → value.
            stale: Keys without a new value.

        Raises:
            ValueError: A key is not logged; lists those that are.
        """
        waiting = no_new_value([self.monitor], stale)
        if waiting:
            return state, KeepDecision(False, (), waiting)
        score = read(metrics, self.monitor)
        if not math.isfinite(score):
            return state, KeepDecision(False, (), f"{self.monitor} is {score}", invalid=True)
        violation = self._violation(metrics, stale)
        if violation:
            return state, KeepDecision(False, (), violation)
        return self._rank(state, step, score)

    def best(self, state: BestState) -> int | None:
        """Return the step with the best score (the oldest of equals), None if none is kept."""
        sign = sign_of(self.mode)
        return max(state.kept, key=lambda step: sign * state.kept[step], default=None)

    def worst(self, state: BestState) -> int | None:
        """Return the step that would be dropped first, None if none is kept."""
        return next(iter(self._worst_first(state.kept)), None)

    def _rank(self, state: BestState, step: int, score: float) -> tuple[BestState, KeepDecision]:
        others = {other: value for other, value in state.kept.items() if other != step}
        worst_first = self._worst_first(others)
        excess = 0 if self.top_k == -1 else max(0, len(others) + 1 - self.top_k)
        sign = sign_of(self.mode)
        keep = self.top_k != 0 and all(
            sign * score > sign * others[rival] for rival in worst_first[:excess]
        )
        dropped = tuple(worst_first[: excess if keep else max(0, excess - 1)])
        kept = {other: value for other, value in state.kept.items() if other not in dropped}
        if not keep:
            reason = f"{self.monitor} is {score:.4f}, not among the best {self.top_k}"
            return BestState(kept), KeepDecision(False, dropped, reason)
        kept.pop(step, None)
        best = "" if self.top_k == -1 else f", among the best {self.top_k}"
        reason = f"{self.monitor} is {score:.4f}{best}"
        return BestState({**kept, step: score}), KeepDecision(True, dropped, reason)

    def _worst_first(self, scores: Mapping[int, float]) -> list[int]:
        sign = sign_of(self.mode)
        return sorted(scores, key=lambda step: sign * scores[step])

    def _violation(self, metrics: Mapping[str, float], stale: Collection[str]) -> str:
        """Return the first violated constraint in words, "" if all are met."""
        for key, (low, high) in self.constraints.items():
            if key in stale and key not in metrics:
                return f"{key} has no value yet"
            value = read(metrics, key)
            smallest = -math.inf if low is None else low
            largest = math.inf if high is None else high
            if not smallest <= value <= largest:
                return f"{key} is {value:.4f}, outside of [{smallest}, {largest}]"
        return ""
