from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.bootstrap import paired_bootstrap

NAN = float("nan")


@pytest.fixture
def five_clusters() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores in clusters of unequal size and different means."""
    random = np.random.default_rng(0)
    clusters = np.repeat(np.arange(5), [2, 3, 4, 5, 6])
    before = random.normal(size=20)
    return before, before + clusters + random.normal(size=20), clusters


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_interval_equals_that_of_all_possible_draws(five_clusters, confidence) -> None:
    before, after, clusters = five_clusters
    exact = []
    for draw in itertools.product(range(5), repeat=5):
        rows = [row for cluster in draw for row in np.flatnonzero(clusters == cluster)]
        exact.append(after[rows].mean() - before[rows].mean())
    interval = paired_bootstrap(before, after, clusters.tolist(), confidence, resamples=50_000)
    for end, at in ((interval.low, (1 - confidence) / 2), (interval.high, (1 + confidence) / 2)):
        assert np.quantile(exact, at - 0.01) <= end <= np.quantile(exact, at + 0.01)
    assert interval.value == pytest.approx(after.mean() - before.mean())


scores = st.lists(st.floats(-100, 100), min_size=6, max_size=6)
letters = st.lists(st.sampled_from("abc"), min_size=4, max_size=4).map(lambda end: ["a", "b", *end])


@given(scores, letters, st.floats(-10, 10))
def test_a_constant_gain_has_no_interval(
    before: list[float], clusters: list[str], gain: float
) -> None:
    after = np.add(before, gain)
    interval = paired_bootstrap(before, after, clusters, resamples=50)
    assert interval == pytest.approx((gain, -math.inf, math.inf), abs=1e-9)


@given(scores, scores, letters)
def test_swapping_the_sides_flips_the_sign(before, after, clusters) -> None:
    one = paired_bootstrap(before, after, clusters, resamples=50)
    other = paired_bootstrap(after, before, clusters, resamples=50)
    assert one == paired_bootstrap(before, after, clusters, resamples=50)  # the same seed
    assert other == pytest.approx((-one.value, -one.high, -one.low), abs=1e-9)
    assert one.low <= one.high


def test_nan_is_left_out_of_its_mean() -> None:
    interval = paired_bootstrap([0, NAN, 0, 0], [1, 1, NAN, 3], ["a", "a", "b", "b"])
    assert interval == pytest.approx((5 / 3, 1, 3))


def test_a_draw_without_scores_is_left_out() -> None:
    interval = paired_bootstrap([0, 0, 1], [NAN, 3, 5], ["a", "b", "c"])
    # Of a alone there is no after; else the mean of before is 0 to 1, and of after 3 to 5.
    assert interval.value == pytest.approx(4 - 1 / 3)
    assert interval.low >= 3
    assert interval.high <= 5
