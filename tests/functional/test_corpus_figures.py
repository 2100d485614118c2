"""Figures of a corpus, against loops over its sentences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.transfer import SentenceScores, adjusted_gm, corpus_figures

THRESHOLDS = (10.0, -20.0, 300.0, -37.0)  # low enough for GM to be above 0 in most draws

sentences = st.tuples(
    st.sampled_from([0.0, 1.0, math.nan]),
    st.floats(-0.2, 1.0) | st.just(math.nan),
    st.floats(-5.0, 0.0),
    st.sampled_from([0.0, 1.0, 3.0, 15.0, math.nan]),
)


@given(st.lists(sentences, min_size=1, max_size=12))
def test_failed_sentences_are_left_out(rows: list[tuple[float, ...]]) -> None:
    scores = SentenceScores(*np.array(rows).T)
    valid = [row for row in rows if not any(map(math.isnan, row)) and row[3] > 0]
    assert scores.failed.sum() == len(rows) - len(valid)
    figures = corpus_figures(scores, THRESHOLDS)
    if not valid:
        assert all(map(math.isnan, figures.values()))
        return
    accuracy = sum(row[0] for row in valid) / len(valid)
    similarity = sum(row[1] for row in valid) / len(valid)
    surprise = -sum(row[2] * row[3] for row in valid) / sum(row[3] for row in valid)
    perplexity = math.exp(surprise)
    gm = adjusted_gm(accuracy, similarity, perplexity, THRESHOLDS)
    assert list(figures.values()) == pytest.approx(
        [accuracy, similarity, perplexity, float(gm)], rel=1e-9, abs=1e-9
    )
    assert list(figures) == ["accuracy", "similarity", "perplexity", "gm"]


def test_copies_have_a_similarity_of_at_most_1() -> None:
    # A cosine of equal vectors may be rounded to above 1, and so may a sum of 1s.
    ones = np.nextafter(np.ones(1001), 2)
    scores = SentenceScores(np.ones(1001), ones, -np.ones(1001), np.ones(1001))
    assert corpus_figures(scores)["similarity"] == 1.0
