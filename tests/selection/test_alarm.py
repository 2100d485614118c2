from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.trend import rising_p_value
from ctrlreward.selection import AlarmRule, AlarmState

values = st.one_of(st.integers(-4, 4).map(float), st.just(math.nan))
rows = st.lists(st.tuples(values, values), max_size=12)
rules = st.builds(
    AlarmRule,
    st.just("x"),
    st.just("y"),
    st.sampled_from(["max", "min"]),
    st.sampled_from(["max", "min"]),
    st.integers(4, 6),
    st.sampled_from([0.125, 0.25, 0.5]),
)


def trend_p_value(proxy, held_out, proxy_mode: str, held_out_mode: str) -> float:
    """Return the larger p-value: both effects must be present (Berger 1982)."""
    rise = proxy if proxy_mode == "max" else [-value for value in proxy]
    fall = held_out if held_out_mode == "min" else [-value for value in held_out]
    return max(rising_p_value(rise), rising_p_value(fall))


@given(rules, rows)
def test_each_decision_equals_a_test_of_the_window(rule: AlarmRule, history) -> None:
    state, first = rule.start(), -1
    for step, (x, y) in enumerate(history):
        state, decision = rule.update(state, step, {"x": x, "y": y})
        finite = [row for row in history[: step + 1] if all(map(math.isfinite, row))]
        assert list(state.values) == finite[-rule.window :]
        if not (math.isfinite(x) and math.isfinite(y)):
            assert decision == (state.alarm, None, f"x is {x}, y is {y}")
            continue
        columns = zip(*state.values, strict=True)
        p_value = trend_p_value(*columns, rule.proxy_mode, rule.held_out_mode)
        assert decision.p_value == p_value
        assert decision.alarm == state.alarm == (p_value <= rule.level)
        first = step if first < 0 and state.alarm else first
        assert state.alarm_step == first


@given(rules, rows, st.data())
def test_a_restored_state_continues_as_the_original(rule: AlarmRule, history, data) -> None:
    cut = data.draw(st.integers(0, len(history)))
    whole = parts = rule.start()
    for step, (x, y) in enumerate(history):
        if step == cut:
            restored = AlarmState.from_dict(json.loads(json.dumps(parts.to_dict())))
            parts, again = rule.resume(restored, step)
            assert again.alarm == parts.alarm
        whole, expected = rule.update(whole, step, {"x": x, "y": y})
        parts, decision = rule.update(parts, step, {"x": x, "y": y})
        assert (parts, decision) == (whole, expected)


def test_reasons_in_words() -> None:
    rule = AlarmRule("x", "y", window=4, level=0.125)
    state = rule.start()
    for step in range(1, 5):
        state, decision = rule.update(state, step, {"x": float(step), "y": -float(step)})
        if step == 3:
            assert decision.reason == (
                "p = 0.2500 for a rise of x, p = 0.2500 for a decline of y: not both at most 0.125 "
                "(trend of means, no scores by prompt)"
            )
    assert decision.reason == (
        "x improved from 1.0000 to 4.0000 (p = 0.1250) while y got worse, from -1.0000 to -4.0000 "
        "(p = 0.1250), in the last 4 scored validations (trend of means, no scores by prompt): the "
        "policy may be gaming the reward"
    )
    assert (state.alarm, state.alarm_step) == (True, 4)


def test_other_settings_may_lift_the_alarm_of_a_resumed_run() -> None:
    state = AlarmState(((1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (4.0, 1.0)), True, 4)
    assert AlarmRule("x", "y", window=4, level=0.125).resume(state, 4)[1].alarm
    assert not AlarmRule("x", "y").resume(state, 4)[1].alarm
    assert not AlarmRule("x", "y").resume(AlarmState(), 4)[1].alarm


@pytest.mark.parametrize("key", ["x", "y"])
def test_a_stale_metric_is_not_tested(key) -> None:
    rule = AlarmRule("x", "y")
    state = AlarmState(((1.0, 2.0),), True, 1)
    expected = (True, None, f"no new value of {key}")
    assert rule.update(state, 2, {"x": 0.0, "y": 0.0}, {key}) == (state, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": "x"}, "proxy and held_out must be different metrics, got 'x' for both"),
        ({"proxy_mode": "up"}, "proxy_mode must be 'max' .* or 'min' .*, got 'up'"),
        ({"held_out_mode": "up"}, "held_out_mode must be 'max' .* or 'min' .*, got 'up'"),
        ({"held_out": {"y": "up"}}, r"held_out\['y'\] must be 'max' .* or 'min' .*, got 'up'"),
        ({"held_out": []}, "held_out is empty, must be at least one key"),
        ({"reference": "last"}, "reference must be 'first' or 'best', got 'last'"),
        ({"margin": -1.0}, "margin must be at least 0, got -1.0"),
        ({"margin": {"z": 0.1}}, "margin has the key 'z', must be one of y"),
        ({"window": 3}, "window must be 4 to 16 scored validations, got 3"),
        ({"window": 17}, "window must be 4 to 16 scored validations, got 17"),
        ({"window": 6}, r"at least 0.031, the smallest p-value of a window of 6, got 0.01"),
        ({"level": 1.0}, "level must be between 0 and 1, got 1.0"),
    ],
)
def test_bad_arguments(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        AlarmRule(**{"proxy": "x", "held_out": "y", **changes})


def test_a_missing_metric_is_named() -> None:
    rule = AlarmRule("x", "y")
    with pytest.raises(ValueError, match=r"'y' is not logged, must be one of \['x'\]"):
        rule.update(rule.start(), 1, {"x": 0.0})
