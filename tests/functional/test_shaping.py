from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.shaping import (
    Moments,
    constrained_rewards,
    length_factor,
    next_multiplier,
    preference_over_references,
    soft_overlong_punishment,
    valid_group_means,
)

values = st.floats(-100, 100)
batches = st.lists(st.lists(st.one_of(values, st.just(math.nan)), max_size=6), max_size=6)
lengths = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def array(items: list[float]) -> np.ndarray:
    return np.array(items, dtype=np.float64)


@given(batches)
def test_merged_moments_are_those_of_all_values_at_once(parts) -> None:
    moments = Moments()
    for part in parts:
        moments = moments.merged(Moments.of(array(part)))
    valid = array([v for part in parts for v in part if not math.isnan(v)])
    assert moments.count == len(valid)
    if len(valid):
        assert moments.mean == pytest.approx(np.mean(valid), abs=1e-9)
        assert moments.std == pytest.approx(np.std(valid), rel=1e-6, abs=1e-6)


@given(lengths, st.integers(1, 30), st.integers(0, 30))
def test_dapo_equation_13(tokens: list[int], cache: int, rest: int) -> None:
    longest = cache + rest
    expected = []
    for length in tokens:
        if length <= longest - cache:
            expected.append(0.0)
        elif length <= longest:
            expected.append(((longest - cache) - length) / cache)
        else:
            expected.append(-1.0)
    result = soft_overlong_punishment(array(tokens), longest, cache)
    assert result.tolist() == pytest.approx(expected)


failing = st.one_of(values, st.just(math.nan))


@given(
    st.integers(1, 3).flatmap(
        lambda m: st.lists(
            st.tuples(failing, st.lists(failing, min_size=m, max_size=m)), min_size=1, max_size=6
        )
    ),
    st.floats(0.5, 20),
)
def test_the_preference_is_the_mean_sigmoid_of_the_differences(rows, scale: float) -> None:
    rewards, references = array([r for r, _ in rows]), np.array([refs for _, refs in rows])
    found = preference_over_references(rewards, references, scale)
    for (reward, refs), got in zip(rows, found, strict=True):
        each = [1 / (1 + math.exp(-(reward - r) / scale)) for r in refs if not math.isnan(r)]
        expected = sum(each) / len(each) if each else math.nan
        assert got == pytest.approx(expected, nan_ok=True)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans()), min_size=1),
    st.floats(0, 5),
)
def test_lengths_are_relative_to_the_valid_ones_of_the_group(rows, alpha: float) -> None:
    groups = np.array([g for g, _, _ in rows])
    tokens = array([n for _, n, _ in rows])
    rewards = array([math.nan if failed else 1.0 for _, _, failed in rows])
    means = valid_group_means(np.where(np.isnan(rewards), np.nan, tokens), groups)
    got = rewards * length_factor(tokens, means, alpha)
    for (group, length, failed), value in zip(rows, got, strict=True):
        if failed:
            assert math.isnan(value)
            continue
        others = [n for g, n, bad in rows if g == group and not bad]
        mean = sum(others) / len(others)
        assert value == pytest.approx(1 / (1 + alpha * length / mean))
        assert length != mean or value == pytest.approx(1 / (1 + alpha))


def test_a_length_of_0_has_the_factor_of_the_mean() -> None:
    assert length_factor(array([0.0]), array([0.0]), 1.0) == [0.5]


@given(values, st.lists(st.tuples(st.floats(0, 9), values), max_size=3))
def test_a_constrained_reward_is_a_weighted_mean(reward: float, terms) -> None:
    (got,) = constrained_rewards(array([reward]), [(m, array([g])) for m, g in terms])
    weights = [1.0, *(m for m, _ in terms)]
    expected = np.average([reward, *(g for _, g in terms)], weights=weights)
    assert got == pytest.approx(expected, abs=1e-9)


@given(st.floats(-8, 8), values, values)
def test_one_bound_has_the_papers_weights(u: float, reward: float, inside: float) -> None:
    sigma = 1 / (1 + math.exp(-u))
    (got,) = constrained_rewards(array([reward]), [(math.exp(u), array([inside]))])
    assert got == pytest.approx((1 - sigma) * reward + sigma * inside, abs=1e-9)


@given(st.floats(0, 5), st.lists(st.floats(-3, 3), min_size=1, max_size=9), st.floats(0.01, 1))
def test_a_multiplier_is_the_projected_sum_and_the_last_excess(start, excesses, rate) -> None:
    integral = expected = start
    for excess in excesses:
        integral, multiplier = next_multiplier(integral, excess, rate)
        expected = expected + rate * excess if expected + rate * excess > 0 else 0.0
        assert integral == pytest.approx(expected)
        assert multiplier == pytest.approx(expected + excess if expected + excess > 0 else 0.0)
