"""The table of decisions, driven through the rules by hand."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
from decision_cases import CASES, TABLE, Case, eighths, values

from ctrlreward.selection import (
    BestRule,
    BestState,
    ParetoRule,
    ParetoState,
    StopRule,
    StopState,
)


@dataclass
class Run:
    """The three rules of a case, and their states."""

    case: Case

    def __post_init__(self) -> None:
        case = self.case
        self.stop_rule = StopRule(
            "a",
            mode=case.mode,
            patience=case.patience,
            min_delta=case.min_delta / 8,
            min_steps=case.min_steps,
            stopping_threshold=eighths(case.threshold),
            divergence_threshold=eighths(case.divergence),
            check_finite=case.finite,
        )
        low, high = case.constraint or (None, None)
        constraints = {"b": (eighths(low), eighths(high))} if case.constraint else {}
        self.best_rule = BestRule("a", case.mode, case.top_k, constraints)
        self.front_rule = ParetoRule({"a": case.mode, "b": "max"})
        self.stop, self.best = self.stop_rule.start(), self.best_rule.start()
        self.front = self.front_rule.start()

    def advance(self, begin: int, end: int) -> None:
        """Feed the validations after steps `begin` + 1 to `end`, until the run stops."""
        a, b = values(self.case.a), values(self.case.b)
        for step in range(begin + 1, end + 1):
            # A stale metric keeps its last value, and has none before the first.
            scored = step - step % self.case.every
            metrics = (
                {"a": a[min(scored, len(a) - 1)], "b": b[min(scored, len(b) - 1)]} if scored else {}
            )
            stale = () if scored == step else ("a", "b")
            self.stop, decision = self.stop_rule.update(self.stop, step, metrics, stale)
            self.best, _ = self.best_rule.update(self.best, step, metrics, stale)
            self.front, _ = self.front_rule.update(self.front, step, metrics, stale)
            if decision.stop:
                return

    def interrupt(self, step: int) -> bool:
        """Save and restore all states; return whether the resumed run ends at once."""
        plain = json.loads(
            json.dumps([self.stop.to_dict(), self.best.to_dict(), self.front.to_dict()])
        )
        stop = StopState.from_dict(plain[0])
        self.stop, decision = self.stop_rule.resume(stop, step)
        self.best = BestState.from_dict(plain[1])
        self.front = ParetoState.from_dict(plain[2])
        return decision.stop


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 30


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_rules_decide_as_the_table_says(case: Case) -> None:
    run = Run(case)
    begin = case.resume or 0
    run.advance(0, begin)
    if not run.interrupt(begin):
        run.advance(begin, case.steps)
    stop = case.stop if case.reason else -1
    assert (run.stop.stopped_step, run.stop.stopped_by) == (stop, case.reason)
    assert set(run.best.kept) == case.best
    assert set(run.front.kept) == case.front


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_resuming_at_any_step_equals_the_uninterrupted_run(case: Case) -> None:
    whole = Run(case)
    whole.advance(0, case.steps)
    for step in range(1, case.stop + 1):
        run = Run(case)
        run.advance(0, step)
        if not run.interrupt(step):
            run.advance(step, case.steps)
        assert repr(run.stop) == repr(whole.stop)  # NaN equals NaN here
        assert (run.best, run.front) == (whole.best, whole.front)


def test_values_are_exact() -> None:
    assert values("1n8")[1:] == [0.125, pytest.approx(math.nan, nan_ok=True), 1.0]
