from __future__ import annotations

import numpy as np
import pytest
from failed_rows import failures_of
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.word_vectors import WordVectors
from ctrlreward.samples import Samples
from ctrlreward.scorers.similarity import Similarity

VECTORS = {"good": [3.0, 4.0], "fine": [4.0, 3.0], "food": [0.0, 1.0]}


@pytest.fixture(scope="module")
def scorer() -> Similarity:
    return Similarity("minilm-l6")


def test_equals_one_pair_at_a_time(scorer: Similarity) -> None:
    pairs = [
        ("The soup was warm.", "The soup was cold."),
        ("We left happy.", "we waited for an hour, and then we left hungry ."),
        ("It rained all day in Lisbon, so we stayed in and read.", "The roof leaks!"),
        ("A quiet garden", "A quiet garden"),
    ]
    vectors = [scorer.loaded_model.embed(list(pair)) for pair in pairs]
    expected = [float(text @ source) for text, source in vectors]
    texts, sources = zip(*pairs, strict=True)
    for each in (scorer, Similarity(scorer.loaded_model)):
        result = each.score(Samples(texts, sources=sources))["similarity"]
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, expected, atol=1e-5)


def test_word_vectors_serve_as_encoder() -> None:
    words = WordVectors(VECTORS)
    scorer = Similarity(words)
    samples = Samples(["good", "fine food", "", "lake"], sources=["fine", "food", "good", "good"])
    values = scorer.score(samples)["similarity"]
    np.testing.assert_allclose(values, [24 / 25, 4 / 32**0.5, np.nan, np.nan])
    assert failures_of(scorer, samples).keys() == {2, 3}
    scorer.to("cuda:1")
    assert scorer.loaded_model is words


@given(st.lists(st.sampled_from(["good", "fine", "food"]), min_size=1, max_size=6))
def test_copies_tie_at_exactly_one(words: list[str]) -> None:
    vectors = {"good": [3.1, 4.2, 1.0], "fine": [4.3, 3.7, -2.0], "food": [0.1, 1.3, 0.7]}
    text = " ".join(words)
    assert Similarity(WordVectors(vectors)).score([text], sources=[text])["similarity"] == 1.0
