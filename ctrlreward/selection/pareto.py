"""Selection of the checkpoints on the Pareto front of several metrics."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from ctrlreward.arguments import Mode, check_direction, sign_of
from ctrlreward.functional.pareto import non_dominated
from ctrlreward.selection.best import KeepDecision
from ctrlreward.selection.metrics import (
    Evidence,
    ModeOf,
    State,
    check_key,
    no_new_value,
    read,
)

Points: TypeAlias = Mapping[int, tuple[float, ...]]
"""Step of a checkpoint → its value of each metric."""


@dataclass(frozen=True)
class ParetoState(State):
    """Checkpoints judged so far: on the front, oldest first, and dominated."""

    kept: Points = field(default_factory=dict)
    pruned: Points = field(default_factory=dict)


@dataclass(frozen=True)
class ParetoRule:
    """Rule that keeps the checkpoints that no other one dominates.

    A checkpoint dominates another if it is at least as good in every metric and better in one.
    Checkpoints that are equal in every metric are all kept. A validation counts if every metric has
    a new, finite value.

    Args:
        metrics: Two or more keys → "max" if higher is better, "min" if lower is better; None is
            "max" until `directed`.

    Examples:
        >>> rule = ParetoRule({"sim": "max", "perplexity": "min"})
        >>> state = rule.start()
        >>> for step, sim, perplexity in [(100, 0.5, 40.0), (200, 0.4, 30.0), (300, 0.6, 35.0)]:
        ...     state, decision = rule.update(state, step, {"sim": sim, "perplexity": perplexity})
        >>> sorted(state.kept), sorted(state.pruned), decision.dropped
        ([200, 300], [100], (100,))
        >>> rule.best(state)
        300
    """

    metrics: Mapping[str, Mode | None]

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Mapping):
            raise TypeError(f"metrics must be key → direction, got {self.metrics!r}")
        if len(self.metrics) < 2:
            raise ValueError(f"metrics must have two or more keys, got {dict(self.metrics)!r}")
        for key, direction in self.metrics.items():
            check_key("each of metrics", key)
            check_direction(f"metrics[{key!r}]", "max" if direction is None else direction)

    @cached_property
    def keys(self) -> list[str]:
        return list(self.metrics)

    def directed(self, mode_of: ModeOf) -> ParetoRule:
        return ParetoRule(
            {key: mode_of(key, mode, f"metrics[{key!r}]") for key, mode in self.metrics.items()}
        )

    def start(self) -> ParetoState:
        return ParetoState()

    def renewed(self, state: ParetoState, changed: Collection[str]) -> ParetoState:
        """Return the state without points, since the keys `changed` their prompts."""
        return self.start()

    def update(
        self,
        state: ParetoState,
        step: int,
        metrics: Mapping[str, float],
        stale: Collection[str] = (),
        evidence: Evidence | None = None,
    ) -> tuple[ParetoState, KeepDecision]:
        """Return the new state, and whether the checkpoint of this validation is on the front.

        Arguments as in `StopRule.update`; compares means only. A step kept before is judged again.
        """
        waiting = no_new_value(self.metrics, stale)
        if waiting:
            return state, KeepDecision(False, (), waiting)
        values = {key: read(metrics, key) for key in self.metrics}
        invalid = [f"{key} is {value}" for key, value in values.items() if not math.isfinite(value)]
        if invalid:
            return state, KeepDecision(False, (), ", ".join(invalid), invalid=True)
        points = {**state.kept, step: tuple(values.values())}
        kept = self._front(points)
        pruned = {s: point for s, point in points.items() if s not in kept}
        dropped = tuple(s for s in state.kept if s in pruned)
        shown = ", ".join(f"{key} is {value:.4f}" for key, value in values.items())
        reason = f"{shown}: {'on the front' if step in kept else 'dominated'}"
        new = ParetoState(kept, {**state.pruned, **pruned})
        return new, KeepDecision(step in kept, dropped, reason)

    def steps(self, state: ParetoState) -> list[int]:
        """Return the steps of the checkpoints judged so far."""
        return sorted({*state.kept, *state.pruned})

    def available(self, state: ParetoState, steps: Collection[int]) -> ParetoState:
        """Return the state without checkpoints of the front that are not among `steps`.

        Those on disk that only these dominated return to the front.
        """
        lost = state.kept.keys() - {*steps}
        if not lost:
            return state
        judged = sorted({**state.pruned, **state.kept}.items())
        points = {step: point for step, point in judged if step in steps}
        kept = self._front(points)
        pruned = {s: point for s, point in state.pruned.items() if s not in kept}
        return ParetoState(kept, pruned)

    def _front(self, points: Points) -> dict[int, tuple[float, ...]]:
        if not points:
            return {}
        modes = [mode or "max" for mode in self.metrics.values()]
        on_front = non_dominated(list(points.values()), modes)
        return {s: points[s] for s, on in zip(points, on_front, strict=True) if on}

    def best(self, state: ParetoState) -> int | None:
        """Return the step of the front with the best first metric, None if the front is empty."""
        sign = sign_of(next(iter(self.metrics.values())))
        return max(state.kept, key=lambda step: sign * state.kept[step][0], default=None)

    def explain(self, state: ParetoState) -> str:
        """Return the step that `best` selects in words."""
        step = self.best(state)
        if step is None:
            return "no validation has finite values of all metrics"
        values = zip(self.metrics, state.kept[step], strict=True)
        shown = ", ".join(f"{key} is {value:.4f}" for key, value in values)
        first = next(iter(self.metrics))
        return f"{shown} at step {step}, the best {first} of {len(state.kept)} on the front"


def pareto_rule(metrics: ParetoRule | Mapping[str, Any] | Sequence[str]) -> ParetoRule:
    """Return the rule that a callback was given, or the one of its metrics."""
    if isinstance(metrics, ParetoRule):
        return metrics
    plain: Any = metrics if isinstance(metrics, Mapping | str) else dict.fromkeys(metrics)
    return ParetoRule(plain)  # which rejects a string
