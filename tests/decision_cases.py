"""Shared table of runs: scores by validation, and the expected stop and kept checkpoints.

tests/selection drives the rules with it directly, tests/callbacks through Lightning.

Each run watches two metrics, `a` and `b`. Their values at steps 1, 2, 3, … are digits, in eighths,
so that they are exact in binary. "n" is NaN, and the last digit repeats. The expected steps were
worked out by hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, Snapshot, StopRule
from ctrlreward.selection.decider import Decider

PROMPTS = 3  # of tests/callbacks/conftest.py
PATIENCE, THRESHOLD = "patience_exhausted", "stopping_threshold"
DIVERGENCE, NAN = "divergence_threshold", "non_finite_metric"


@dataclass(frozen=True)
class Case:
    """A run that stops at `stop`, or ends at `steps` if `reason` is None."""

    a: str
    stop: int
    reason: str | None
    best: set[int]  # steps of the best checkpoints at the end
    front: set[int]  # steps of the checkpoints on the Pareto front at the end
    b: str = "4"
    every: int = 1
    patience: int = 3
    min_steps: int = 0
    min_delta: int = 0
    threshold: int | None = None
    divergence: int | None = None
    finite: bool = True
    mode: str = "max"
    top_k: int = 1
    constraint: tuple[int | None, int | None] | None = None  # on b
    steps: int = 8

    @property
    def stopping(self) -> dict[str, Any]:
        """Arguments of the rule that stops the run, without the mode."""
        return {
            "patience": self.patience,
            "min_delta": self.min_delta / 8,
            "min_steps": self.min_steps,
            "stopping_threshold": eighths(self.threshold),
            "divergence_threshold": eighths(self.divergence),
            "check_finite": self.finite,
        }

    def rules(self) -> dict[str, Any]:
        low, high = self.constraint or (None, None)
        constraints = {"score/b": (eighths(low), eighths(high))} if self.constraint else {}
        return {
            "stop": StopRule("score/a", mode=self.mode, **self.stopping),
            "best": BestRule("score/a", self.mode, self.top_k, constraints),
            "front": ParetoRule({"score/a": self.mode, "score/b": "max"}),
        }

    def validations(self) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of a rule's update at each validation, until the run ends."""
        a, b = values(self.a), values(self.b)
        for step in range(1, self.steps + 1):
            # A stale metric keeps its last value, and has none before the first.
            scored = step - step % self.every
            last = {"score/a": a[min(scored, len(a) - 1)], "score/b": b[min(scored, len(b) - 1)]}
            metrics = last if scored else {}
            # All prompts have the same score; so few show nothing.
            evidence = {key: [value] * PROMPTS for key, value in metrics.items()}
            yield step, metrics, () if scored == step else tuple(last), evidence


TABLE = {
    # values and patience
    "rises": Case("12345678", 8, None, {8}, {8}),
    "falls": Case("87654321", 4, PATIENCE, {1}, {1}),
    "patience of one": Case("2132", 2, PATIENCE, {1}, {1}, patience=1),
    "recovers in time": Case("132543", 6, PATIENCE, {4}, {4}, patience=2),
    "one NaN is not counted": Case("n1324", 8, PATIENCE, {5}, {5, 6, 7, 8}),
    "more NaN in a row than patience": Case("4nnn", 5, NAN, {1}, {1}),
    "two NaN, patience of one": Case("4nn5", 3, NAN, {1}, {1}, patience=1),
    "NaN is skipped": Case("2n3n1", 5, None, {3}, {3}, finite=False, steps=5),
    "an improvement exceeds min_delta": Case(
        "13457", 5, None, {5}, {5}, min_delta=2, patience=2, steps=5
    ),
    "lower is better": Case("43256", 5, PATIENCE, {3}, {3}, mode="min", patience=2),
    # two metrics
    "all on the front": Case("12345678", 8, None, {8}, set(range(1, 9)), b="87654321"),
    "front of a stopped run": Case("87654321", 4, PATIENCE, {1}, {1, 2, 3, 4}, b="12345678"),
    "some on the front": Case("25136", 5, None, {5}, {2, 3, 4, 5}, b="42741", patience=8, steps=5),
    "equal points are dominated together": Case("3352", 4, None, {3}, {3}, b="3351", steps=4),
    "lower and higher": Case(
        "43256", 5, None, {3}, {3, 4, 5}, b="12345", mode="min", patience=8, steps=5
    ),
    # scored at every nth validation
    "every second, falls": Case("18273645", 6, PATIENCE, {2}, {2}, every=2, patience=2),
    "every third, patience of one": Case("88288188", 6, PATIENCE, {3}, {3}, every=3, patience=1),
    # minimum steps
    "not before min_steps": Case("87654321", 6, PATIENCE, {1}, {1}, patience=2, min_steps=6),
    "a threshold is ignored before min_steps": Case(
        "26345678", 4, PATIENCE, {2}, {2}, threshold=5, patience=2, min_steps=4
    ),
    "NaN before min_steps": Case("4n55", 6, PATIENCE, {3}, {3, 4, 5, 6}, min_steps=3),
    # thresholds
    "threshold": Case("24567", 4, THRESHOLD, {4}, {4}, threshold=5),
    "threshold, lower is better": Case("6543", 4, THRESHOLD, {4}, {4}, threshold=4, mode="min"),
    "divergence": Case(
        "54321", 4, DIVERGENCE, {1}, {1, 2, 3, 4}, b="12345", divergence=3, patience=8
    ),
    # top-k and constraints
    "two are kept": Case("13254", 5, None, {4, 5}, {4}, top_k=2, patience=8, steps=5),
    "constraint": Case(
        "12345678", 8, None, {5}, set(range(1, 9)), b="87654321", constraint=(4, None)
    ),
    "constraint from both sides": Case(
        "82345678", 8, None, {6}, {1}, b="87654321", constraint=(3, 5), patience=8
    ),
    "constraint that none meets": Case("1234", 4, None, set(), {4}, constraint=(None, 3), steps=4),
    "NaN meets no constraint": Case(
        "1234", 4, None, {3}, {3}, b="4n4n", constraint=(0, 8), steps=4
    ),
}


@dataclass(frozen=True)
class ByPrompt:
    """A run of twelve prompts whose scores differ from the mean by a sixteenth, up or down.

    The sign changes at every step, so that two validations differ by what their means do, or by an
    eighth more and less at every other prompt. The proxy `b` rises, except where given.
    """

    a: str  # means of the held-out metric, in eighths
    stop: int  # step of the last validation
    cause: str | None
    selected: int
    alarm: int  # step of the first alarm, -1 without one
    b: str = "012345678"
    stopping: Mapping[str, Any] = field(default_factory=dict)
    keeping: Mapping[str, Any] = field(default_factory=dict)
    guarding: Mapping[str, Any] = field(default_factory=dict)

    def scores(self, key: str, step: int) -> list[float]:
        """Return the score of each prompt at a step."""
        mean = values(getattr(self, key))[step]
        return [mean + (-1) ** (prompt + step) / 16 for prompt in range(12)]

    def rules(self) -> dict[str, Any]:
        return {
            "stop": StopRule("score/a", **self.stopping),
            "best": BestRule("score/a", **self.keeping),
            "alarm": AlarmRule(**{"proxy": "score/b", "held_out": "score/a", **self.guarding}),
        }

    def validations(self) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of a rule's update."""
        for step in range(1, len(self.a) + 1):
            scores = {f"score/{key}": self.scores(key, step) for key in "ab"}
            yield step, {key: sum(row) / len(row) for key, row in scores.items()}, (), scores


BY_PROMPT = {
    # From 8 to 7 eighths six prompts fall by a quarter and six stay: p = 1/64, a level of 0.0304.
    "alarm at once": ByPrompt("87654321", 4, PATIENCE, 1, 2),
    "no alarm while the proxy stays": ByPrompt("87654321", 4, PATIENCE, 1, -1, b="1" * 8),
    "no alarm after a rise that remains": ByPrompt(
        "15555444", 8, None, 2, -1, stopping={"patience": 9}
    ),
    "alarm after a rise": ByPrompt(
        "15522222", 8, None, 2, 4, stopping={"patience": 9}, guarding={"reference": "best"}
    ),
    "no alarm within the margin": ByPrompt("8777", 4, PATIENCE, 1, -1, guarding={"margin": 0.5}),
    "alarm of drift": ByPrompt(
        "12345678", 8, None, 8, 3, guarding={"held_out": {"score/a": "drift"}}
    ),
    "a decline stops": ByPrompt(
        "4551111", 4, "decline_shown", 2, 4, stopping={"patience": 9, "decline": True}
    ),
    "noise is no improvement": ByPrompt(
        "4444444", 4, PATIENCE, 1, -1, stopping={"min_delta": "noise"}
    ),
}


class HandDriven:
    """Rules of a case with their states, driven without a trainer."""

    def __init__(self, case: Case | ByPrompt) -> None:
        self.case, self.rules = case, case.rules()
        self.deciders = {name: Decider(rule) for name, rule in self.rules.items()}

    @property
    def states(self) -> dict[str, Any]:
        return {name: decider.state for name, decider in self.deciders.items()}

    def play(self, cut: int | None = None) -> HandDriven:
        """Run the case until it stops; after step `cut` the run is interrupted and resumed."""
        for step, metrics, stale, evidence in self.case.validations():
            snapshot = Snapshot(step, metrics, metrics.keys() - {*stale}, evidence)
            stops = False
            for name, decider in self.deciders.items():
                decision = decider.decide(snapshot)
                stops |= name == "stop" and decision.stop
            if step == cut:
                for name, decider in self.deciders.items():
                    restored = Decider(self.rules[name])
                    restored.load(json.loads(json.dumps(decider.to_dict())))
                    self.deciders[name] = restored
                stops = self.deciders["stop"].resume()
            if stops:
                break
        return self


def without_prompts(state: Any) -> Any:
    """Return plain data of a state without digests of prompts, which a rule by hand lacks."""
    if isinstance(state, dict):
        return {k: without_prompts(v) for k, v in state.items() if k != "prompts"}
    return [without_prompts(v) for v in state] if isinstance(state, list) else state


def values(digits: str) -> list[float]:
    """Return the values by step; step 0 is not scored."""
    return [0.0] + [math.nan if d == "n" else int(d) / 8 for d in digits]


def eighths(number: int | None) -> float | None:
    return None if number is None else number / 8
