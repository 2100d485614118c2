"""What all rules have in common, and each one against its definition, by means."""

from __future__ import annotations

import io
import json
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.callbacks import EarlyStopping

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
from ctrlreward.selection.metrics import NotLogged

# Exact in binary, so that two ways to compute a difference round alike; few, so that ties are
# frequent.
QUARTERS = [n / 4 for n in range(-4, 5)]
quarters = st.sampled_from(QUARTERS)
values = st.sampled_from([*QUARTERS, math.nan, math.inf])
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
    ("name", "metrics", "missing"),
    [
        ("stop", {}, "x"),
        ("best", {"x": 0.0, "z": 0.0}, "y"),
        ("front", {"x": 0.0}, "y"),
        ("alarm", {"x": 0.0}, "y"),
    ],
)
def test_a_missing_metric_is_named(name: str, metrics, missing: str) -> None:
    with pytest.raises(NotLogged, match=f"'{missing}'") as raised:
        RULES[name].update(RULES[name].start(), 1, metrics)
    assert raised.value.key == missing


ALARM = {"proxy": "x", "held_out": "y"}


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        (StopRule, {"monitor": "x", "mode": "up"}, "mode"),
        (StopRule, {"monitor": "x", "patience": -1}, "patience"),
        (StopRule, {"monitor": "x", "min_delta": "some"}, "min_delta"),
        (StopRule, {"monitor": "x", "min_delta": float("nan")}, "min_delta"),
        (BestRule, {"monitor": "x", "constraints": {"k": ("1", None)}}, r"constraints\['k'\]"),
        (BestRule, {"monitor": "x", "top_k": -2}, "top_k"),
        (BestRule, {"monitor": "x", "constraints": {"k": (None, None)}}, r"constraints\['k'\]"),
        (BestRule, {"monitor": "x", "constraints": {"k": (1, 0)}}, r"constraints\['k'\]"),
        (ParetoRule, {"metrics": {"x": "max"}}, "metrics"),
        (ParetoRule, {"metrics": {"x": "max", "y": "up"}}, r"metrics\['y'\]"),
        (AlarmRule, ALARM | {"held_out": "x"}, "proxy and held_out"),
        (AlarmRule, ALARM | {"held_out": {"y": "up"}}, r"held_out\['y'\]"),
        (AlarmRule, ALARM | {"held_out": []}, "held_out"),
        (AlarmRule, ALARM | {"margin": -1.0}, "margin"),
        (AlarmRule, ALARM | {"margin": {"z": 0.1}}, "margin"),
        (AlarmRule, ALARM | {"level": 1.0}, "level"),
    ],
)
def test_bad_arguments(kind: Any, arguments, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kind(**arguments)


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


def test_fewer_are_kept_after_resuming_with_a_smaller_k() -> None:
    state = BestState({1: 0.5, 2: 0.25, 3: 0.75})
    state, decision = BestRule("x", top_k=1).update(state, 4, {"x": 0.5})
    assert (state.kept, decision[:2]) == ({3: 0.75}, (False, (2, 1)))


def test_a_step_that_is_judged_again_replaces_itself() -> None:
    rule = BestRule("x", top_k=2)
    state, decision = rule.update(BestState({1: 0.5, 2: 0.25}), 1, {"x": 0.75})
    assert (state.kept, decision[:2]) == ({2: 0.25, 1: 0.75}, (True, ()))


@pytest.mark.parametrize(
    ("metrics", "stale", "keep", "of"),
    [
        ({"x": 0.5, "y": 0.5}, (), True, "x"),
        ({"x": 0.25, "y": 0.5}, (), False, "x"),
        ({"x": math.nan, "y": 0.5}, (), False, "x"),
        ({"x": 0.5, "y": 1.5}, (), False, "y"),
        ({"x": 0.5, "y": math.nan}, (), False, "y"),
        ({"x": 0.5}, ("y",), False, "y"),
        ({"x": 0.5, "y": 0.5}, ("y",), True, "x"),
    ],
)
def test_a_new_best_that_meets_its_bounds_is_kept(metrics, stale, keep, of) -> None:
    rule = BestRule("x", constraints={"y": (None, 1.0)})
    _, decision = rule.update(BestState({1: 0.375}), 2, metrics, stale)
    assert decision.keep == keep
    assert decision.reason.startswith(of)
    assert decision.invalid == math.isnan(metrics["x"])


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


def test_a_front_is_explained() -> None:
    rule = RULES["front"]
    state, decision = rule.update(rule.start(), 1, {"x": 0.5, "y": 0.5})
    assert decision.reason.endswith("on the front")
    assert rule.update(state, 2, {"x": 0.5, "y": 0.75})[1].reason.endswith("dominated")
    assert "at step 1" in rule.explain(state)


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
