"""Corpus figures of weighted sentences, against repeated rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.transfer import (
    SentenceScores,
    weighted_transfer,
)

FIGURES = ("accuracy", "similarity", "perplexity", "gm")
THRESHOLDS = (10.0, -20.0, 300.0, -37.0)  # low enough for GM to be above 0 in most draws


def system(n: int, seed: int, failed: int = 0) -> SentenceScores:
    """Draw scores of n sentences, of which the first ones failed in one way each."""
    random = np.random.default_rng(seed)
    scores = SentenceScores(
        random.integers(0, 2, n).astype(float),
        random.uniform(-0.2, 1, n),
        -random.exponential(3, n),
        random.integers(1, 16, n).astype(float),
    )
    for i in range(failed):
        (scores.accuracy, scores.similarity, scores.tokens)[i % 3][i] = (np.nan, np.nan, 0)[i % 3]
    return scores


def resampled(scores: SentenceScores, rows: list[int]) -> list[float]:
    """Compute the figures of the rows as `TransferQuality` does those of a corpus."""
    drawn = SentenceScores(*(column[rows] for column in scores))
    corpus = weighted_transfer(drawn, np.ones((1, len(rows))), THRESHOLDS)
    return [corpus[name].item() for name in FIGURES]


@given(st.integers(0, 10_000), st.integers(0, 3), st.data())
def test_weights_stand_for_repeated_rows(seed: int, failed: int, data: st.DataObject) -> None:
    scores = system(7, seed, failed)
    rows = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    weights = np.bincount(rows, minlength=7).astype(float)[None]
    weighted = weighted_transfer(scores, weights, THRESHOLDS)
    assert tuple(weighted) == FIGURES
    assert [float(weighted[name][0]) for name in FIGURES] == pytest.approx(
        resampled(scores, rows), rel=1e-9, abs=1e-9, nan_ok=True
    )


def test_copies_have_a_similarity_of_at_most_1() -> None:
    # A cosine of equal vectors may be rounded to above 1, and so may a sum of 1s.
    ones = np.nextafter(np.ones(1001), 2)
    scores = SentenceScores(np.ones(1001), ones, -np.ones(1001), np.ones(1001))
    assert weighted_transfer(scores, np.ones((1, 1001)))["similarity"] == [1.0]
