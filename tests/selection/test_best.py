from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.selection import BestRule, BestState

# Few distinct values, so that ties are frequent.
values = st.sampled_from([0.0, 0.25, 0.5, 0.75, math.nan, math.inf])
rows = st.lists(st.tuples(values, values, st.booleans()), max_size=12)
rules = st.builds(
    BestRule,
    st.just("x"),
    st.sampled_from(["max", "min"]),
    st.integers(-1, 4),
    st.sampled_from([{}, {"y": (0.25, None)}, {"y": (None, 0.5)}, {"y": (0.25, 0.5)}]),
)


def allowed(value: float, low: float | None, high: float | None) -> bool:
    above = low is None or value >= low
    return not math.isnan(value) and above and (high is None or value <= high)


def brute_force(rule: BestRule, history: list[tuple[float, float, bool]]) -> list[int]:
    """Return the steps to keep, oldest first, from the whole history at once.

    A newcomer loses a tie with all that were kept before; of these, the oldest goes first.
    """
    kept: list[int] = []
    for step, (x, y, fresh) in enumerate(history):
        bounds = rule.constraints.get("y")
        if not fresh or not math.isfinite(x) or (bounds and not allowed(y, *bounds)):
            continue
        goodness = {s: history[s][0] * (1 if rule.mode == "max" else -1) for s in [*kept, step]}
        if rule.top_k in (-1,) or len(kept) < rule.top_k:
            kept.append(step)
        elif kept and goodness[step] > min(goodness[s] for s in kept):
            worst = min(goodness[s] for s in kept)
            kept.remove(next(s for s in kept if goodness[s] == worst))
            kept.append(step)
    return kept


@given(rules, rows)
def test_top_k_equals_brute_force(rule: BestRule, history) -> None:
    state = rule.start()
    for step, (x, y, fresh) in enumerate(history):
        before = state
        stale = () if fresh else ("x",)
        state, decision = rule.update(state, step, {"x": x, "y": y}, stale)
        assert list(state.kept) == brute_force(rule, history[: step + 1])
        assert decision.keep == (step in state.kept)
        assert set(decision.dropped) == set(before.kept) - set(state.kept)
        assert decision.reason
    scores = [history[step][0] for step in state.kept]
    if scores:
        best, worst = rule.best(state), rule.worst(state)
        extremes = (max(scores), min(scores))
        expected = extremes if rule.mode == "max" else extremes[::-1]
        assert (state.kept[best], state.kept[worst]) == expected
    else:
        assert rule.best(state) is rule.worst(state) is None


@given(rules, rows, st.data())
def test_a_restored_state_continues_as_the_original(rule: BestRule, history, data) -> None:
    cut = data.draw(st.integers(0, len(history)))
    whole = parts = rule.start()
    for step, (x, y, _) in enumerate(history):
        if step == cut:
            parts = BestState.from_dict(json.loads(json.dumps(parts.to_dict())))
        whole, expected = rule.update(whole, step, {"x": x, "y": y})
        parts, decision = rule.update(parts, step, {"x": x, "y": y})
        assert (parts, decision) == (whole, expected)


@given(rows, st.integers(1, 3), st.integers(1, 3))
def test_the_best_of_a_smaller_k_are_among_those_of_a_larger(history, small, more) -> None:
    narrow, wide = BestRule("x", top_k=small), BestRule("x", top_k=small + more)
    few, many = narrow.start(), wide.start()
    for step, (x, _, _) in enumerate(history):
        few, _ = narrow.update(few, step, {"x": x})
        many, _ = wide.update(many, step, {"x": x})
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
        ({"x": 0.5, "y": 0.5}, ("x",), "no new value of x"),
        ({"x": math.nan, "y": 0.5}, (), "x is nan"),
        ({"x": 0.5, "y": 1.5}, (), "y is 1.5000, outside of [-inf, 1.0]"),
        ({"x": 0.5, "y": math.nan}, (), "y is nan, outside of [-inf, 1.0]"),
        ({"x": 0.5}, ("y",), "y has no value yet"),
        ({"x": 0.5, "y": 0.5}, ("y",), "x is 0.5000, among the best 1"),
    ],
)
def test_reasons_in_words(metrics, stale, reason) -> None:
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
        (0.6, (None, None), True),
        (math.nan, (None, None), False),
    ],
)
def test_bounds_are_inclusive_and_nan_meets_none(value, bounds, meets) -> None:
    rule = BestRule("x", constraints={"k": bounds})
    assert rule.update(rule.start(), 1, {"x": 0.0, "k": value})[1].keep == meets


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"mode must be 'max' .* or 'min' .*, got 'up'"):
        BestRule("x", mode="up")
    with pytest.raises(ValueError, match="top_k must be a count, or -1 to keep all, got -2"):
        BestRule("x", top_k=-2)
    rule = BestRule("x", constraints={"k": (0, 1)})
    for metrics, key in (({"y": 0.0}, "x"), ({"x": 0.0, "y": 0.0}, "k")):
        with pytest.raises(ValueError, match=rf"'{key}' is not logged, must be one of \[.*'y'\]"):
            rule.update(rule.start(), 1, metrics)
