from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.trend import rising_p_value

# Integers, so that the plain loops below need no tolerance for ties.
curves = st.lists(st.integers(-5, 5), max_size=8)
pairs = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), max_size=8)


def score(values: list[int]) -> int:
    return sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))


def p_value(values: list[int]) -> float:
    steps = [b - a for a, b in itertools.pairwise(values)]
    as_high = total = 0
    for signs in itertools.product((1, -1), repeat=len(steps)):
        walk = list(
            itertools.accumulate((s * d for s, d in zip(signs, steps, strict=True)), initial=0)
        )
        as_high += score(walk) >= score(values)
        total += 1
    return as_high / total


@given(curves)
def test_p_value_equals_enumeration_of_all_signs(values: list[int]) -> None:
    assert rising_p_value(values) == pytest.approx(p_value(values))


@given(curves)
def test_units_do_not_matter(values: list[int]) -> None:
    """0.1 × 3 - 0.1 × 2 differs from 0.1 by rounding, and is a tie with it."""
    scaled = [0.1 * value + 0.7 for value in values]
    assert rising_p_value(scaled) == rising_p_value(values)


def test_a_monotone_rise_has_the_smallest_p_value_and_a_fall_the_largest() -> None:
    for n in (2, 5, 16):
        assert rising_p_value(np.arange(n) ** 2) == 2.0 ** (1 - n)
        assert rising_p_value(-np.arange(n)) == 1


@pytest.mark.parametrize("values", [[], [3.0], [2.0] * 5])
def test_a_constant_curve_does_not_rise(values: list[float]) -> None:
    assert rising_p_value(values) == 1


def test_rounding_is_no_trend() -> None:
    assert rising_p_value([0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2]) > 0.5


@pytest.mark.parametrize("heavy", [False, True])
def test_level_holds_for_random_walks(heavy: bool) -> None:
    random = np.random.default_rng(0)
    draw = random.standard_cauchy if heavy else random.standard_normal
    p_values = np.array([rising_p_value(np.cumsum(draw(8))) for _ in range(1000)])
    for level in (0.02, 0.1, 0.5):
        share = (p_values <= level).mean()
        # Conservative where p-values are coarse: multiples of 1/128, and fewer for tied scores.
        assert share <= level + 3 * math.sqrt(level * (1 - level) / len(p_values))
        assert share >= 0.3 * level


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"values\[1\] must be finite, got nan"):
        rising_p_value([0.0, math.nan, 1.0])
    with pytest.raises(
        ValueError, match=r"values must be one row of at most 16, got shape \(17,\)"
    ):
        rising_p_value(range(17))
