"""Tests by sign flips against enumeration, intervals against the test, levels by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ctrlreward.functional.sequential import (
    detectable_difference,
    jackknife_values,
    level_of_test,
    paired_difference,
    rise_p_value,
    sign_flip_p_value,
)

small = st.lists(st.integers(-4, 4).map(lambda n: n / 8), min_size=1, max_size=9)


def enumerated(differences: list[float], tolerance: float = 1e-9) -> float:
    """Return the share of all sign patterns whose sum is at least the observed one."""
    patterns = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    sums = patterns @ np.abs(differences)
    return float((sums >= np.sum(differences) - tolerance).mean())


@given(small)
@pytest.mark.parametrize("scale", [1.0, 2.0**1020, 2.0**-1070])  # up to the ends of float64
def test_p_value_equals_enumeration(scale: float, differences: list[float]) -> None:
    scaled = [scale * each for each in differences]
    assert sign_flip_p_value(scaled) == pytest.approx(enumerated(differences))


def test_rounding_counts_against_the_difference() -> None:
    rng = np.random.default_rng(0)
    for n in range(2, 13):
        values = rng.normal(0.3, 1, size=n) * 10.0 ** rng.integers(-6, 6)
        p_value = sign_flip_p_value(values)
        # At most what a shift by 1 % of a standard deviation of the sum would change.
        looser = enumerated(list(values), 0.01 * math.sqrt((values**2).sum()))
        assert enumerated(list(values)) - 1e-12 <= p_value <= looser + 1e-12


SYMMETRIC = {
    "binary": lambda rng, n: rng.binomial(1, 0.9, n) - rng.binomial(1, 0.9, n),
    "skewed": lambda rng, n: rng.exponential(size=n) - rng.exponential(size=n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
}


@pytest.mark.parametrize("kind", SYMMETRIC)
@pytest.mark.parametrize("n", [6, 24])
def test_level_holds_for_any_symmetric_difference(kind: str, n: int) -> None:
    rng = np.random.default_rng(1)
    p_values = np.array([sign_flip_p_value(SYMMETRIC[kind](rng, n)) for _ in range(1500)])
    for level in (0.02, 0.05, 0.2):
        allowed = level + 3 * math.sqrt(level * (1 - level) / len(p_values))
        assert (p_values <= level).mean() <= allowed


def test_levels_of_a_run_sum_to_its_level() -> None:
    levels = [level_of_test(0.05, k) for k in range(1, 10_001)]
    assert 0.0499 < sum(levels) < 0.05


@given(small, st.floats(0.01, 0.5))
def test_interval_holds_what_the_test_does_not_reject(after: list[float], level: float) -> None:
    result = paired_difference(after, minus=np.zeros(len(after)), level=level)
    assert result.value == pytest.approx(np.mean(after))
    assert result.prompts == len(after)
    if math.isinf(result.low):
        assert 2.0 ** -len(after) > level / 2
        assert math.isinf(result.high)
        return
    step = 1e-2
    for end, outwards in ((result.low, -step), (result.high, step)):
        sign = -math.copysign(1, outwards)
        rejected = sign_flip_p_value(sign * (np.array(after) - end - outwards))
        assert rejected <= level / 2
        accepted = sign_flip_p_value(sign * (np.array(after) - end + outwards))
        assert accepted > level / 2 or np.ptp(after) == 0


def test_interval_holds_at_all_validations_together() -> None:
    rng, misses, runs = np.random.default_rng(2), 0, 80
    for _ in range(runs):
        scores = rng.exponential(size=(8, 12)) + rng.normal(size=12)  # nothing changes
        misses += any(
            paired_difference(
                scores[k], minus=scores[0], level=level_of_test(0.2, k)
            ).distinguishable
            for k in range(1, 8)
        )
    assert misses / runs <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / runs)


def test_prompts_that_failed_are_left_out() -> None:
    before, after = [0.1, math.nan, 0.3, 0.2], [0.3, 0.9, math.nan, 0.5]
    assert paired_difference(after, minus=before, level=0.9).prompts == 2
    assert paired_difference(after, minus=before, level=0.9).value == pytest.approx(0.25)
    assert rise_p_value(before, after) == 0.25
    nothing = paired_difference([0.5], minus=[math.nan])
    assert (nothing.low, nothing.high, nothing.prompts) == (-math.inf, math.inf, 0)
    assert nothing.failed == (0, 1)
    assert paired_difference([1.0, *after], minus=[math.nan, *before]).failed == (1, 2)
    assert math.isnan(nothing.value)
    assert rise_p_value([math.nan], [0.5]) == 1.0


def test_many_prompts_are_added_up_in_groups() -> None:
    rng = np.random.default_rng(3)
    differences = rng.normal(0.1, 1, size=1000)
    sums = np.bincount(np.arange(1000) % 128, weights=differences)
    assert rise_p_value(np.zeros(1000), differences) == sign_flip_p_value(sums)
    expected = stats.ttest_1samp(differences, 0, alternative="greater").pvalue
    assert rise_p_value(np.zeros(1000), differences) == pytest.approx(expected, rel=1)


def test_a_margin_is_the_smallest_rise_that_matters() -> None:
    before, after = np.zeros(8), np.full(8, 0.1)
    assert rise_p_value(before, after, margin=0.05) == 2**-8
    assert rise_p_value(before, after, margin=0.2) == 1.0


@given(small.filter(lambda values: len(values) > 1))
def test_jackknife_values_of_a_mean_are_the_scores(values: list[float]) -> None:
    without = [np.mean(np.delete(values, i)) for i in range(len(values))]
    assert jackknife_values(float(np.mean(values)), without) == pytest.approx(values)


def test_detectable_difference_is_found_with_its_power() -> None:
    rng = np.random.default_rng(6)
    before = rng.normal(size=24)
    noise = rng.normal(size=24)
    size = detectable_difference(before, before + noise)
    found = [
        stats.ttest_1samp(size + noise.std(ddof=1) * rng.normal(size=24), 0).pvalue <= 0.05
        for _ in range(2000)
    ]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)
    assert detectable_difference([1.0], [2.0]) == math.inf
