from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.idf import inverse_document_frequency


def test_documents_are_counted_not_occurrences() -> None:
    idf = inverse_document_frequency(iter([["the", "food", "the"], ["the", "soup"], ["the"], []]))
    assert idf == pytest.approx({"the": math.log(4 / 3), "food": math.log(4), "soup": math.log(4)})


documents = st.lists(st.lists(st.sampled_from("abcde")), min_size=1)


@given(documents)
def test_equals_brute_force(corpus: list[list[str]]) -> None:
    idf = inverse_document_frequency(corpus)
    assert set(idf) == {word for words in corpus for word in words}
    for word, weight in idf.items():
        held = sum(word in words for words in corpus)
        assert weight == pytest.approx(math.log(len(corpus) / held))
        assert 0 <= weight <= math.log(len(corpus))


@given(documents)
def test_a_corpus_read_twice_gives_the_same(corpus: list[list[str]]) -> None:
    once = inverse_document_frequency(corpus)
    assert inverse_document_frequency(corpus * 2) == pytest.approx(once)


def test_a_document_that_is_a_string() -> None:
    with pytest.raises(TypeError, match=r"documents\[1\] = 'the food' is a str: give its words"):
        inverse_document_frequency([["the"], "the food"])


def test_an_empty_corpus() -> None:
    with pytest.raises(ValueError, match="the corpus has no documents"):
        inverse_document_frequency([])
