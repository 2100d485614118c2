from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.frequency import (
    inverse_document_frequency,
    inverse_frequency,
    log_inverse_frequency,
)

counts = st.lists(st.integers(0, 1000), min_size=1)


@given(counts, st.integers(1, 10**9))
def test_iwf_equals_the_formula_token_by_token(counts: list[int], sentences: int) -> None:
    expected = [math.log(1 + sentences) / count if count else 0.0 for count in counts]
    np.testing.assert_allclose(inverse_frequency(counts, sentences), expected, rtol=1e-12)


@given(counts, st.integers(1000, 10**9))
def test_log_iwf_equals_the_formula_token_by_token(counts: list[int], sentences: int) -> None:
    expected = [math.log((1 + sentences) / count) if count else 0.0 for count in counts]
    weights = log_inverse_frequency(counts, sentences)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
    assert (weights >= 0).all()


def test_iwf_equals_a_published_weight() -> None:
    # Line 109 of the published table, a token that occurs in one of 98,344,542 sentences.
    assert inverse_frequency([1], 98_344_542)[0] == pytest.approx(18.403987615749035, abs=1e-12)


def test_idf_counts_documents_not_occurrences() -> None:
    idf = inverse_document_frequency(iter([["the", "food", "the"], ["the", "soup"], ["the"], []]))
    assert idf == pytest.approx({"the": math.log(4 / 3), "food": math.log(4), "soup": math.log(4)})


documents = st.lists(st.lists(st.sampled_from("abcde")), min_size=1)


@given(documents)
def test_idf_equals_brute_force(corpus: list[list[str]]) -> None:
    idf = inverse_document_frequency(corpus)
    assert set(idf) == {word for words in corpus for word in words}
    for word, weight in idf.items():
        held = sum(word in words for words in corpus)
        assert weight == pytest.approx(math.log(len(corpus) / held))
        assert 0 <= weight <= math.log(len(corpus))


def test_documents_that_are_none() -> None:
    message = r"documents\[1\] must be a list of words, got 'the food', a str"
    with pytest.raises(TypeError, match=message):
        inverse_document_frequency([["the"], "the food"])
    with pytest.raises(ValueError, match="documents is empty, must have at least one"):
        inverse_document_frequency([])
