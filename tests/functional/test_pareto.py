from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional import non_dominated


@st.composite
def fronts(draw) -> tuple[list[list[float]], list[str]]:
    """Draw points with few distinct values, so that ties and equal points are frequent."""
    k = draw(st.integers(1, 4))
    value = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, math.inf])
    points = draw(st.lists(st.lists(value, min_size=k, max_size=k), min_size=1, max_size=9))
    return points, draw(st.lists(st.sampled_from(["max", "min"]), min_size=k, max_size=k))


def dominates(a: list[float], b: list[float], directions: list[str]) -> bool:
    better = False
    for x, y, direction in zip(a, b, directions, strict=True):
        if (x < y) if direction == "max" else (x > y):
            return False
        better = better or x != y
    return better


@given(fronts())
def test_equals_comparing_all_pairs(given_) -> None:
    points, directions = given_
    expected = [not any(dominates(other, p, directions) for other in points) for p in points]
    front = non_dominated(points, directions)
    assert front.dtype == np.bool_
    assert front.tolist() == expected
