from __future__ import annotations

import math
from statistics import harmonic_mean

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ctrlreward.functional.alignment import (
    AGGREGATES,
    best_cosines,
    content_tokens,
    preservation,
    relevance,
)

Array = npt.NDArray[np.float64]

COORDINATES = st.integers(-9, 9).map(float)
VALUES = st.floats(0.001, 1.0)


def rows() -> st.SearchStrategy[Array]:
    """Draw one to six nonzero vectors of width 3."""
    shapes = st.tuples(st.integers(1, 6), st.just(3))
    return shapes.flatmap(lambda s: hnp.arrays(np.float64, s, elements=COORDINATES)).filter(
        lambda array: bool((np.abs(array).sum(axis=1) > 0).all())
    )


def one_pair_at_a_time(a: Array, b: Array) -> list[float]:
    def cosine(x: Array, y: Array) -> float:
        product = math.fsum(p * q for p, q in zip(x, y, strict=True))
        return product / math.sqrt(math.fsum(p * p for p in x) * math.fsum(q * q for q in y))

    return [max(cosine(x, y) for y in b) for x in a]


@given(rows(), rows())
def test_equals_one_pair_at_a_time(a: Array, b: Array) -> None:
    cosines = best_cosines(a, b)
    assert cosines.dtype == np.float64
    np.testing.assert_allclose(cosines, one_pair_at_a_time(a, b), atol=1e-12)
    assert (np.abs(cosines) <= 1).all()


def test_empty_sides() -> None:
    some = np.ones((2, 3))
    assert best_cosines(np.ones((0, 3)), some).shape == (0,)
    assert np.isnan(best_cosines(some, np.ones((0, 3)))).tolist() == [True, True]


def test_a_vector_of_zeros_has_no_cosine() -> None:
    assert np.isnan(best_cosines([[0.0, 0.0], [1.0, 0.0]], [[1.0, 1.0]])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "spans", "content"),
    [
        ("The soup", [(0, 3), (4, 8)], [False, True]),
        # Pieces of don't: NLTK's list has don and t, but not the apostrophe.
        ("don't", [(0, 3), (3, 4), (4, 5)], [False, True, False]),
        # The s of waiter|s is not a word of its own, the s of it's is.
        ("waiters", [(0, 6), (6, 7)], [True, True]),
        ("it's", [(0, 2), (2, 3), (3, 4)], [False, True, False]),
        # Byte-pair tokenizers include the space before a word in its token.
        ("Soup the", [(0, 4), (4, 8)], [True, False]),
        ("4 the", [(0, 1), (2, 5)], [True, False]),
    ],
)
def test_stop_words_are_whole_words(text, spans, content) -> None:
    mask = content_tokens(text, spans, {"the", "it", "don", "t", "s"})
    assert mask.dtype == np.bool_
    assert mask.tolist() == content


def test_no_values_have_sum_0_and_mean_nan() -> None:
    assert AGGREGATES["sum"](np.zeros(0)) == 0
    assert math.isnan(AGGREGATES["mean"](np.zeros(0)))


@given(VALUES, VALUES)
def test_preservation_is_the_harmonic_mean(output: float, source: float) -> None:
    value = float(preservation(output, source))
    assert value == pytest.approx(harmonic_mean([output, source]))
    assert value == pytest.approx(float(preservation(source, output)))
    assert min(output, source) - 1e-12 <= value <= max(output, source) + 1e-12


def test_preservation_is_0_where_a_direction_is_not_positive() -> None:
    assert preservation([0.0, -0.2, 0.0, -0.1], [0.9, 0.9, 0.0, -0.1]).tolist() == [0.0] * 4


@pytest.mark.parametrize("fold", [preservation, relevance])
def test_nan_propagates(fold: object) -> None:
    assert callable(fold)
    values = fold([np.nan, 0.5, 0.5], [0.5, np.nan, 0.5])
    assert np.isnan(values).tolist() == [True, True, False]
