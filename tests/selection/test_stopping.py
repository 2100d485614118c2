from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.callbacks import EarlyStopping

from ctrlreward.selection import StopRule, StopState

# Exact in binary, so that two ways to compute a difference round alike.
quarters = st.integers(-8, 8).map(lambda n: n / 4)
numbers = st.one_of(quarters, st.sampled_from([math.inf, -math.inf]))
scores = st.one_of(numbers, st.just(math.nan))
limits = st.one_of(st.none(), quarters)
settings = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["max", "min"]),
        "patience": st.integers(1, 4),
        "min_delta": st.integers(0, 4).map(lambda n: n / 4),
        "check_finite": st.booleans(),
        "stopping_threshold": limits,
        "divergence_threshold": limits,
    }
)
curves = st.lists(scores, min_size=1, max_size=12)


@given(st.lists(numbers, min_size=1, max_size=12), settings)
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


@given(curves, settings, st.integers(0, 8), st.data())
def test_a_restored_state_continues_as_the_original(curve, arguments, min_steps, data) -> None:
    rule = StopRule("x", min_steps=min_steps, **arguments)
    cut = data.draw(st.integers(0, len(curve)))
    whole = parts = rule.start()
    for step, score in enumerate(curve, 1):
        whole, expected = rule.update(whole, step, {"x": score})
        parts, decision = rule.update(parts, step, {"x": score})
        assert decision == expected
        if step == cut:
            restored = StopState.from_dict(json.loads(json.dumps(parts.to_dict())))
            parts, again = rule.resume(restored, step)
            assert again.stop == decision.stop
        if decision.stop:
            break
    assert repr(parts) == repr(whole)  # NaN equals NaN here


@given(curves, settings, st.integers(0, 12))
def test_nothing_stops_before_min_steps(curve, arguments, min_steps) -> None:
    rule = StopRule("x", min_steps=min_steps, **arguments)
    state = rule.start()
    for step, score in enumerate(curve, 1):
        state, decision = rule.update(state, step, {"x": score})
        assert step >= min_steps or not decision.stop


@given(settings, scores)
def test_a_stale_score_changes_nothing(arguments, score) -> None:
    rule = StopRule("x", **arguments)
    state = rule.start()
    assert rule.update(state, 1, {"x": score}, {"x"}) == (state, (False, None, "no new value of x"))


def test_reasons_in_words() -> None:
    rule = StopRule("x", patience=2)
    state, improved = rule.update(rule.start(), 1, {"x": 0.5})
    state, waits = rule.update(state, 2, {"x": 0.25})
    _, stops = rule.update(state, 3, {"x": 0.375})
    assert improved.reason == "x improved from -inf (now 0.5000, best 0.5000)"
    start = "x has not improved by more than 0.0 in the last"
    assert waits.reason == f"{start} 1 scores (now 0.2500, best 0.5000)"
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


@given(curves, settings, st.lists(st.integers(0, 12), max_size=3))
def test_single_nan_change_no_decision(curve, arguments, places) -> None:
    curve = [score for score in curve if not math.isnan(score)]
    gaps = set(places)
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
    state, _ = strict.update(strict.start(), 1, {"x": 0.5})
    state, decision = strict.update(state, 2, {"x": 0.25})
    assert decision.stop
    assert strict.resume(state, 2)[0] == state
    resumed, decision = patient.resume(state, 2)
    assert not decision.stop
    assert (resumed.stopped_by, resumed.stopped_step, resumed.wait_count) == (None, -1, 1)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"mode must be 'max' .* or 'min' .*, got 'up'"):
        StopRule("x", mode="up")
    rule = StopRule("x")
    with pytest.raises(ValueError, match=r"'x' is not logged, must be one of \['y', 'z'\]"):
        rule.update(rule.start(), 1, {"z": 0.0, "y": 0.0})
    with pytest.raises(ValueError, match=r"'x' is not logged, .*\(did you mean 'score/x'\?\)$"):
        rule.update(rule.start(), 1, {"score/x": 0.0})
    with pytest.raises(ValueError, match=r"'x' is not logged, nor is anything else$"):
        rule.update(rule.start(), 1, {})
