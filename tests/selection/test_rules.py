"""What all rules have in common, and each one against its definition, by means."""

from __future__ import annotations

import ast
import io
import json
import math
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.callbacks import EarlyStopping

from ctrlreward import selection
from ctrlreward.selection import (
    AlarmRule,
    BestRule,
    BestState,
    ParetoRule,
    ParetoState,
    Snapshot,
    StopRule,
)
from ctrlreward.selection.decider import Decider

# Exact in binary, so that two ways to compute a difference round alike; few, so that ties are
# frequent.
quarters = st.integers(-4, 4).map(lambda n: n / 4)
values = st.one_of(quarters, st.sampled_from([math.nan, math.inf]))
rows = st.lists(st.fixed_dictionaries({"x": values, "y": values, "z": values}), max_size=12)
modes = st.sampled_from(["max", "min"])
limits = st.one_of(st.none(), quarters)
stopping = st.fixed_dictionaries(
    {
        "mode": modes,
        "patience": st.integers(1, 4),
        "min_delta": st.integers(0, 4).map(lambda n: n / 4),
        "check_finite": st.booleans(),
        "stopping_threshold": limits,
        "divergence_threshold": limits,
    }
)
stop_rules = st.builds(
    lambda min_steps, settings: StopRule("x", min_steps=min_steps, **settings),
    st.integers(0, 8),
    stopping,
)
bounds = st.sampled_from([{}, {"y": (0.25, None)}, {"y": (None, 0.5)}, {"y": (0.25, 0.5)}])
best_rules = st.builds(BestRule, st.just("x"), modes, st.integers(-1, 4), bounds)
front_rules = st.builds(ParetoRule, st.fixed_dictionaries({"x": modes, "y": modes, "z": modes}))

RULES = {
    "stop": StopRule("x", patience=2),
    "best": BestRule("x", top_k=2, constraints={"y": (None, 1.0)}),
    "front": ParetoRule({"x": "max", "y": "min"}),
    "alarm": AlarmRule("x", "y"),
}


def decided(rule: Any, rows: list[dict[str, float]]) -> Decider:
    """Return the decider of a run with these validations, of 32 prompts with equal scores."""
    decider = Decider(rule)
    for step, row in enumerate(rows, 1):
        evidence = {key: [value] * 32 for key, value in row.items()}
        decider.decide(Snapshot(step, row, row.keys(), evidence))
    return decider


def resumed(rule: Any, saved: Decider) -> tuple[bool, Any]:
    """Return whether a run that is resumed with this rule ends at once, and its state."""
    decider = Decider(rule)
    decider.load(json.loads(json.dumps(saved.to_dict())))
    return decider.resume(), decider.state


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_all_rules_have_one_shape_and_states_for_any_checkpoint(rule: Any) -> None:
    state = rule.start()
    for step in range(1, 6):
        old, before = state, repr(state)
        state, decision = rule.update(state, step, {"x": 0.1 * step, "y": 1.0 / step})
        assert repr(old) == before  # an update changes no earlier state
        assert isinstance(decision.reason, str)
        assert decision.reason
    for stale in ("x", "y") if isinstance(rule, AlarmRule | ParetoRule) else ("x",):
        skipped, decision = rule.update(state, 6, {"x": 9.0, "y": 0.0}, stale=(stale,))
        assert skipped == state
        assert decision[0] is (isinstance(rule, AlarmRule) and state.alarm)
        assert decision.reason == f"no new value of {stale}"
    with pytest.raises(FrozenInstanceError):
        state.anything = 1
    file = io.BytesIO()
    torch.save(state.to_dict(), file)
    file.seek(0)
    assert type(state).from_dict(torch.load(file, weights_only=True)) == state


@given(st.one_of(stop_rules, best_rules, front_rules), rows, st.data())
def test_a_restored_state_continues_as_the_original(rule: Any, history, data) -> None:
    cut = data.draw(st.integers(0, len(history)))
    whole = parts = rule.start()
    for step, row in enumerate(history):
        whole, expected = rule.update(whole, step, row)
        parts, decision = rule.update(parts, step, row)
        assert decision == expected
        if step == cut:
            parts = type(parts).from_dict(json.loads(json.dumps(parts.to_dict())))
        if isinstance(rule, StopRule) and decision.stop:
            break
    assert repr(parts) == repr(whole)  # NaN equals NaN here


@pytest.mark.parametrize(
    ("rule", "metrics", "message"),
    [
        (RULES["stop"], {"z": 0.0, "y": 0.0}, r"'x' is not logged, must be one of \['y', 'z'\]"),
        (RULES["stop"], {"score/x": 0.0}, r"'x' is not logged, .*\(did you mean 'score/x'\?\)$"),
        (RULES["stop"], {}, r"'x' is not logged, nor is anything else$"),
        (RULES["best"], {"y": 0.0}, r"'x' is not logged, must be one of \['y'\]"),
        (RULES["best"], {"x": 0.0, "z": 0.0}, r"'y' is not logged, must be one of \['x', 'z'\]"),
        (RULES["front"], {"x": 0.0}, r"'y' is not logged, must be one of \['x'\]"),
        (RULES["alarm"], {"x": 0.0}, r"'y' is not logged, must be one of \['x'\]"),
    ],
)
def test_a_missing_metric_is_named(rule: Any, metrics, message) -> None:
    with pytest.raises(ValueError, match=message):
        rule.update(rule.start(), 1, metrics)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (StopRule, {"mode": "up"}, "mode must be 'max' .* or 'min' .*, got 'up'"),
        (BestRule, {"mode": "up"}, "mode must be 'max' .* or 'min' .*, got 'up'"),
        (BestRule, {"top_k": -2}, "top_k must be a count, or -1 to keep all, got -2"),
        (BestRule, {"constraints": {"k": (None, None)}}, r"\['k'\] must be .*, got \(None, None\)"),
        (BestRule, {"constraints": {"k": (1, 0)}}, "None for at most one, got \\(1, 0\\)"),
        (BestRule, {"constraints": {"k": 0.1}}, r"\['k'\] must be .*, got 0.1"),
        (StopRule, {"patience": -1}, "patience must be 0 or more, got -1"),
        (ParetoRule, {"metrics": {"x": "max"}}, "two or more keys, got {'x': 'max'}"),
        (ParetoRule, {"metrics": {"x": "max", "y": "up"}}, r"\['y'\] must be 'max' .* got 'up'"),
        (AlarmRule, {"held_out": "x"}, "must be different metrics, got 'x' for both"),
        (AlarmRule, {"proxy_mode": "up"}, "proxy_mode must be 'max' .* or 'min' .*, got 'up'"),
        (AlarmRule, {"held_out_mode": "up"}, "held_out_mode must be 'max' .* or .*, got 'up'"),
        (AlarmRule, {"held_out": {"y": "up"}}, r"held_out\['y'\] must be 'max' .*, got 'up'"),
        (AlarmRule, {"held_out": []}, "held_out is empty, must be at least one key"),
        (AlarmRule, {"reference": "last"}, "reference must be one of first, best, got 'last'"),
        (AlarmRule, {"margin": -1.0}, "margin must be 0 or more, got -1.0"),
        (AlarmRule, {"margin": {"z": 0.1}}, "a key of margin must be one of y, got 'z'"),
        (AlarmRule, {"level": 1.0}, "level must be between 0 and 1, got 1.0"),
    ],
)
def test_bad_arguments(kind: Any, arguments, message) -> None:
    usual = {AlarmRule: {"proxy": "x", "held_out": "y"}, ParetoRule: {}}
    with pytest.raises(ValueError, match=message):
        kind(**{**usual.get(kind, {"monitor": "x"}), **arguments})


def test_rules_import_neither_a_trainer_nor_torch() -> None:
    imported: set[str] = set()
    for path in Path(selection.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    ours = {name for name in imported if name.startswith("ctrlreward.selection")}
    functional = ("diversity", "pareto", "sequential")
    others = {"ctrlreward.arguments", "ctrlreward.models.words", "pydantic"}
    assert imported - ours - set(sys.stdlib_module_names) == {
        *others,
        *("collections.abc", "numpy", "numpy.typing"),
        *(f"ctrlreward.functional.{name}" for name in functional),
    }


# Stop


@given(st.lists(st.one_of(quarters, st.sampled_from([math.inf, -math.inf])), min_size=1), stopping)
def test_decides_as_lightning_does(curve, arguments) -> None:
    reference = EarlyStopping("x", **arguments)
    rule = StopRule("x", **arguments)
    state = rule.start()
    for step, score in enumerate(curve, 1):
        expected, _ = reference._evaluate_stopping_criteria(torch.tensor(score))
        state, decision = rule.update(state, step, {"x": score})
        assert state.best == reference.best_score.item()
        assert state.wait_count == reference.wait_count
        assert decision.stop == expected
        if expected:
            assert decision.cause == state.stopped_by == reference.stopping_reason.name.lower()
            assert (state.stopped_step, state.stopping_reason) == (step, decision.reason)


@given(stop_rules, rows)
def test_nothing_stops_before_min_steps(rule: StopRule, history) -> None:
    state = rule.start()
    for step, row in enumerate(history):
        state, decision = rule.update(state, step, row)
        assert step >= rule.min_steps or not decision.stop


@given(stopping, rows, st.lists(st.integers(0, 12), max_size=3))
def test_single_nan_change_no_decision(arguments, history, places) -> None:
    curve, gaps = [row["x"] for row in history if not math.isnan(row["x"])], set(places)
    rule = StopRule("x", **arguments)
    plain = holed = rule.start()
    for step, score in enumerate(curve):
        if step in gaps:
            holed, failed = rule.update(holed, step, {"x": math.nan})
            assert not failed.stop
        plain, expected = rule.update(plain, step, {"x": score})
        holed, decision = rule.update(holed, step, {"x": score})
        assert decision == expected


def test_reasons_of_patience() -> None:
    rule = StopRule("x", patience=2)
    state, improved = rule.update(rule.start(), 1, {"x": 0.5})
    state, waits = rule.update(state, 2, {"x": 0.25})
    _, stops = rule.update(state, 3, {"x": 0.375})
    assert improved.reason == "x improved from -inf (now 0.5000, best 0.5000)"
    start = "x has not improved by more than 0.0 in the last"
    assert waits.reason == f"{start} 1 score (now 0.2500, best 0.5000)"
    assert stops.reason == f"{start} 2 scores (now 0.3750, best 0.5000)"


@pytest.mark.parametrize(
    ("arguments", "score", "reason"),
    [
        ({"stopping_threshold": 0.5}, 0.75, "x reached 0.5 (now 0.7500, best -inf)"),
        ({"divergence_threshold": 0.5}, 0.25, "x passed 0.5 (now 0.2500, best -inf)"),
        ({}, math.inf, "x is inf (now inf, best -inf)"),
    ],
)
def test_immediate_stops_name_the_limit(arguments, score, reason) -> None:
    rule = StopRule("x", **arguments)
    state, decision = rule.update(rule.start(), 1, {"x": score})
    assert decision.stop
    assert decision.reason == state.stopping_reason == reason


def test_other_settings_may_continue_a_stopped_run() -> None:
    strict, patient = StopRule("x", patience=1), StopRule("x", patience=3)
    saved = decided(strict, [{"x": 0.5}, {"x": 0.25}])
    assert saved.state.ended
    assert resumed(strict, saved) == (True, saved.state)
    stops, state = resumed(patient, saved)
    assert not stops
    assert (state.stopped_by, state.stopped_step, state.wait_count) == (None, -1, 1)
    running = decided(patient, [{"x": 0.5}, {"x": 0.25}])
    assert resumed(strict, running) == (False, running.state)  # a run that had not stopped goes on


# Best


def allowed(value: float, low: float | None = None, high: float | None = None) -> bool:
    above = low is None or value >= low
    return not math.isnan(value) and above and (high is None or value <= high)


def brute_force(rule: BestRule, history: list[dict[str, float]], fresh: list[bool]) -> list[int]:
    """Return the steps to keep, oldest first, from the whole history at once.

    A newcomer loses a tie with all that were kept before; of these, the oldest goes first.
    """
    kept: list[int] = []
    sign = 1 if rule.mode == "max" else -1
    for step, (row, new) in enumerate(zip(history, fresh, strict=False)):
        bounds = rule.constraints.get("y")
        if not new or not math.isfinite(row["x"]) or (bounds and not allowed(row["y"], *bounds)):
            continue
        goodness = {s: sign * history[s]["x"] for s in [*kept, step]}
        if rule.top_k == -1 or len(kept) < rule.top_k:
            kept.append(step)
        elif kept and goodness[step] > min(goodness[s] for s in kept):
            worst = min(goodness[s] for s in kept)
            kept.remove(next(s for s in kept if goodness[s] == worst))
            kept.append(step)
    return kept


@given(best_rules, rows, st.lists(st.booleans(), min_size=12, max_size=12))
def test_top_k_equals_brute_force(rule: BestRule, history, fresh) -> None:
    state = rule.start()
    for step, row in enumerate(history):
        before = state
        state, decision = rule.update(state, step, row, () if fresh[step] else ("x",))
        assert list(state.kept) == brute_force(rule, history[: step + 1], fresh)
        assert decision.keep == (step in state.kept)
        assert set(decision.dropped) == set(before.kept) - set(state.kept)
        assert decision.reason
    scores = [history[step]["x"] for step in state.kept]
    if scores:
        best = max(scores) if rule.mode == "max" else min(scores)
        assert state.kept[rule.best(state)] == best
    else:
        assert rule.best(state) is None


@given(rows, st.integers(1, 3), st.integers(1, 3))
def test_the_best_of_a_smaller_k_are_among_those_of_a_larger(history, small, more) -> None:
    narrow, wide = BestRule("x", top_k=small), BestRule("x", top_k=small + more)
    few, many = narrow.start(), wide.start()
    for step, row in enumerate(history):
        few, _ = narrow.update(few, step, row)
        many, _ = wide.update(many, step, row)
    assert sorted(few.kept.values()) == sorted(many.kept.values())[-small:]


def test_fewer_are_kept_after_resuming_with_a_smaller_k() -> None:
    state = BestState({1: 0.5, 2: 0.25, 3: 0.75})
    state, decision = BestRule("x", top_k=1).update(state, 4, {"x": 0.5})
    assert (state.kept, decision[:2]) == ({3: 0.75}, (False, (2, 1)))


def test_a_step_that_is_judged_again_replaces_itself() -> None:
    rule = BestRule("x", top_k=2)
    state, decision = rule.update(BestState({1: 0.5, 2: 0.25}), 1, {"x": 0.75})
    assert (state.kept, decision[:2]) == ({2: 0.25, 1: 0.75}, (True, ()))


@pytest.mark.parametrize(
    ("metrics", "stale", "reason"),
    [
        ({"x": 0.5, "y": 0.5}, (), "x is 0.5000, among the best 1"),
        ({"x": 0.25, "y": 0.5}, (), "x is 0.2500, not among the best 1"),
        ({"x": math.nan, "y": 0.5}, (), "x is nan"),
        ({"x": 0.5, "y": 1.5}, (), "y is 1.5000, outside of [-inf, 1.0]"),
        ({"x": 0.5, "y": math.nan}, (), "y is nan, outside of [-inf, 1.0]"),
        ({"x": 0.5}, ("y",), "y has no value yet"),
        ({"x": 0.5, "y": 0.5}, ("y",), "x is 0.5000, among the best 1"),
    ],
)
def test_reasons_of_a_selection(metrics, stale, reason) -> None:
    rule = BestRule("x", constraints={"y": (None, 1.0)})
    _, decision = rule.update(BestState({1: 0.375}), 2, metrics, stale)
    assert decision.reason == reason
    assert decision.keep == reason.startswith("x is 0.5000, among")
    assert decision.invalid == (reason == "x is nan")


@pytest.mark.parametrize(
    ("value", "bounds", "meets"),
    [
        (0.5, (0.5, 0.5), True),
        (0.4, (0.5, None), False),
        (0.6, (None, 0.5), False),
        (math.nan, (-math.inf, None), False),
    ],
)
def test_bounds_are_inclusive_and_nan_meets_none(value, bounds, meets) -> None:
    rule = BestRule("x", constraints={"k": bounds})
    assert rule.update(rule.start(), 1, {"x": 0.0, "k": value})[1].keep == meets


# Front


def dominates(a, b, signs) -> bool:
    better = [sign * x > sign * y for x, y, sign in zip(a, b, signs, strict=True)]
    worse = [sign * x < sign * y for x, y, sign in zip(a, b, signs, strict=True)]
    return any(better) and not any(worse)


@given(front_rules, rows)
def test_front_equals_brute_force(rule: ParetoRule, history) -> None:
    signs = [1 if mode == "max" else -1 for mode in rule.metrics.values()]
    points = [tuple(row[key] for key in rule.metrics) for row in history]
    state, valid = rule.start(), {}
    for step, row in enumerate(history):
        before = state
        state, decision = rule.update(state, step, row)
        if all(map(math.isfinite, points[step])):
            valid[step] = points[step]
        front = {
            s: point
            for s, point in valid.items()
            if not any(dominates(other, point, signs) for other in valid.values())
        }
        assert state.kept == front
        assert set(state.pruned) == valid.keys() - front.keys()
        assert decision.keep == (step in front)
        assert decision.invalid == (step not in valid)
        assert set(decision.dropped) == before.kept.keys() - front.keys()
    best = rule.best(state)
    first = [signs[0] * point[0] for point in state.kept.values()]
    assert (best is None) == (first == [])
    assert best is None or signs[0] * state.kept[best][0] == max(first)


def test_reasons_of_a_front() -> None:
    rule = RULES["front"]
    state, decision = rule.update(rule.start(), 1, {"x": 0.5, "y": 0.5})
    assert decision.reason == "x is 0.5000, y is 0.5000: on the front"
    _, decision = rule.update(state, 2, {"x": 0.5, "y": 0.75})
    assert decision.reason == "x is 0.5000, y is 0.7500: dominated"
    _, decision = rule.update(state, 2, {"x": math.nan, "y": math.inf})
    assert decision.reason == "x is nan, y is inf"
    assert rule.explain(state) == "x is 0.5000, y is 0.5000 at step 1, the best x of 1 on the front"


def test_a_point_without_its_file_leaves_the_front() -> None:
    rule = ParetoRule({"x": "max", "y": "max"})
    state = ParetoState({1: (0.0, 1.0), 2: (1.0, 0.0)}, {3: (0.0, 0.5), 4: (0.5, 0.0)})
    assert rule.available(state, [1, 2]) is state
    assert rule.available(state, [2]) == ParetoState({2: (1.0, 0.0)}, state.pruned)
    # 3 was dominated by 1 alone, 4 by 2.
    returned = rule.available(state, [2, 3, 4])
    assert returned == ParetoState({2: (1.0, 0.0), 3: (0.0, 0.5)}, {4: (0.5, 0.0)})
    assert rule.available(state, []) == ParetoState({}, state.pruned)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 3), st.data())
def test_without_a_lost_checkpoint_the_others_are_kept_as_if_it_had_not_been(
    scores: list[int], top_k: int, data: st.DataObject
) -> None:
    rule = BestRule("x", top_k=top_k)
    state = rule.start()
    for step, score in enumerate(scores):
        state, _ = rule.update(state, step, {"x": float(score)})
    lost = data.draw(st.sets(st.sampled_from(sorted(state.kept)), min_size=1))
    without = rule.start()
    for step, score in enumerate(scores):
        if step not in lost:
            without, _ = rule.update(without, step, {"x": float(score)})
    found = rule.available(state, {*range(len(scores))} - lost)
    assert (found.kept, found.candidates) == (without.kept, without.candidates)
    assert rule.available(state, state.kept) is state


# Alarm


def test_no_alarm_without_scores_by_prompt() -> None:
    rule = AlarmRule("x", {"y": "max", "z": "max"})
    state = rule.start()
    for step in range(1, 20):
        row = {"x": float(step), "y": -float(step), "z": -float(step)}
        state, decision = rule.update(state, step, row, evidence={"z": [row["z"]] * 32})
        assert (decision.alarm, decision.p_value, decision.untestable) == (False, None, True)
        assert decision.reason.startswith("y without")
    assert state == rule.start()


def test_other_settings_may_lift_the_alarm_of_a_resumed_run() -> None:
    rule, lenient = AlarmRule("x", "y"), AlarmRule("x", "y", margin=9.0)
    saved = decided(rule, [{"x": step, "y": -step} for step in (1.0, 2.0)])
    state = saved.state
    assert state.alarm
    assert resumed(rule, saved) == (True, state)
    _, lifted = resumed(lenient, saved)
    assert (lifted.alarm, lifted.alarm_step) == (False, -1)
    assert not Decider(rule).resume()
    stale, decision = RULES["alarm"].update(state, 5, {"x": 0.0, "y": 0.0}, {"y"})
    assert (stale, decision) == (state, (True, None, "no new value of y", False))
