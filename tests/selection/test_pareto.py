from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.selection import ParetoRule, ParetoState

values = st.sampled_from([0.0, 0.25, 0.5, math.nan, math.inf])
rows = st.lists(st.tuples(values, values, values), max_size=10)
directions = st.lists(st.sampled_from(["max", "min"]), min_size=3, max_size=3)


def dominates(a, b, signs) -> bool:
    better = [sign * x > sign * y for x, y, sign in zip(a, b, signs, strict=True)]
    worse = [sign * x < sign * y for x, y, sign in zip(a, b, signs, strict=True)]
    return any(better) and not any(worse)


@given(rows, directions)
def test_front_equals_brute_force(history, modes) -> None:
    rule = ParetoRule(dict(zip("xyz", modes, strict=True)))
    signs = [1 if mode == "max" else -1 for mode in modes]
    state = rule.start()
    for step, row in enumerate(history):
        before = state
        state, decision = rule.update(state, step, dict(zip("xyz", row, strict=True)))
        valid = {s: r for s, r in enumerate(history[: step + 1]) if all(map(math.isfinite, r))}
        front = {
            s: r
            for s, r in valid.items()
            if not any(dominates(other, r, signs) for other in valid.values())
        }
        assert state.kept == front
        assert set(state.pruned) == valid.keys() - front.keys()
        assert decision.keep == (step in front)
        assert decision.invalid == (step not in valid)
        assert set(decision.dropped) == before.kept.keys() - front.keys()
    best = rule.best(state)
    first = [row[0] for row in state.kept.values()]
    if first:
        assert state.kept[best][0] == (max(first) if modes[0] == "max" else min(first))
    else:
        assert best is None


@given(rows, directions, st.data())
def test_a_restored_state_continues_as_the_original(history, modes, data) -> None:
    rule = ParetoRule(dict(zip("xyz", modes, strict=True)))
    cut = data.draw(st.integers(0, len(history)))
    whole = parts = rule.start()
    for step, row in enumerate(history):
        if step == cut:
            parts = ParetoState.from_dict(json.loads(json.dumps(parts.to_dict())))
        metrics = dict(zip("xyz", row, strict=True))
        whole, expected = rule.update(whole, step, metrics)
        parts, decision = rule.update(parts, step, metrics)
        assert (parts, decision) == (whole, expected)


def test_one_stale_metric_is_enough_to_skip() -> None:
    rule = ParetoRule({"x": "max", "y": "max"})
    state, decision = rule.update(rule.start(), 1, {"x": 0.5}, {"y"})
    assert (state, decision.keep, decision.reason) == (rule.start(), False, "no new value of y")


def test_reasons_in_words() -> None:
    rule = ParetoRule({"x": "max", "y": "min"})
    state, decision = rule.update(rule.start(), 1, {"x": 0.5, "y": 0.5})
    assert decision.reason == "x is 0.5000, y is 0.5000: on the front"
    _, decision = rule.update(state, 2, {"x": 0.5, "y": 0.75})
    assert decision.reason == "x is 0.5000, y is 0.7500: dominated"
    _, decision = rule.update(state, 2, {"x": math.nan, "y": math.inf})
    assert decision.reason == "x is nan, y is inf"


def test_a_point_without_its_file_leaves_the_front() -> None:
    state = ParetoState({1: (0.0, 1.0), 2: (1.0, 0.0)}, {3: (0.0, 0.0)})
    assert state.without([1, 3]) == ParetoState({2: (1.0, 0.0)}, {3: (0.0, 0.0)})


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"x": "max"}, r"metrics must have two or more keys, got \{'x': 'max'\}"),
        ({"x": "max", "y": "up"}, r"metrics\['y'\] must be 'max' .* or 'min' .*, got 'up'"),
    ],
)
def test_bad_metrics(metrics, message) -> None:
    with pytest.raises(ValueError, match=message):
        ParetoRule(metrics)


def test_a_missing_metric_is_named() -> None:
    rule = ParetoRule({"x": "max", "y": "max"})
    with pytest.raises(ValueError, match=r"'y' is not logged, must be one of \['x'\]"):
        rule.update(rule.start(), 1, {"x": 0.0})
