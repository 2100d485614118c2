"""Pairs of preferences from ratings, equal to brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.preferences import pairwise_preferences

NAN = float("nan")


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), max_size=10),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_pairs_equal_brute_force(rated: list[tuple[int, str]], margin: float) -> None:
    expected = {
        (i, j)
        for i, (high, one) in enumerate(rated)
        for j, (low, other) in enumerate(rated)
        if one == other and high - low > margin
    }
    preferred, rejected = pairwise_preferences([r for r, _ in rated], [c for _, c in rated], margin)
    assert len(preferred) == len(rejected) == len(expected)
    assert set(zip(preferred.tolist(), rejected.tolist(), strict=True)) == expected


def test_a_nan_rating_is_in_no_pair() -> None:
    preferred, rejected = pairwise_preferences([5.0, NAN, 3.0], ["x", "x", "x"])
    assert (preferred.tolist(), rejected.tolist()) == ([0], [2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], ["a"]), r"ratings must have one value per item, got shape \(2,\) for 1 items"),
        (([1, 2], ["a", "a"], -0.5), r"margin must be 0 or more, got -0\.5"),
    ],
)
def test_bad_ratings(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pairwise_preferences(*arguments)
