"""Corpus figures of weighted sentences and their paired bootstrap, against resampled rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.transfer import (
    SentenceScores,
    paired_transfer_bootstrap,
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


def test_intervals_are_those_of_a_loop_over_resampled_sentences() -> None:
    before, after = system(40, 0, failed=3), system(40, 1)
    estimates = paired_transfer_bootstrap(before, after, THRESHOLDS, resamples=4000)
    random = np.random.default_rng(7)
    draws = []
    for _ in range(4000):
        rows = random.integers(0, 40, 40).tolist()
        draws.append(np.subtract(resampled(after, rows), resampled(before, rows)))
    everything = list(range(40))
    values = np.subtract(resampled(after, everything), resampled(before, everything))
    ends = np.quantile(draws, [0.025, 0.975], axis=0)
    for i, name in enumerate(FIGURES):
        assert estimates[name].value == pytest.approx(values[i], abs=1e-9)
        width = ends[1, i] - ends[0, i]
        assert estimates[name].low == pytest.approx(ends[0, i], abs=0.08 * width)
        assert estimates[name].high == pytest.approx(ends[1, i], abs=0.08 * width)


def test_pairing_makes_the_interval_of_equal_systems_a_point() -> None:
    scores = system(20, 3)
    for name, estimate in paired_transfer_bootstrap(scores, scores, THRESHOLDS).items():
        assert tuple(estimate) == (0.0, 0.0, 0.0), name


def test_a_system_without_valid_sentence_is_undefined_not_0() -> None:
    nothing = system(5, 0)._replace(tokens=np.zeros(5))
    for estimate in paired_transfer_bootstrap(nothing, system(5, 1), THRESHOLDS).values():
        assert np.isnan(estimate).all()


def test_unpaired_systems_raise() -> None:
    with pytest.raises(ValueError, match=r"must be the same sentences, .*, got 5 and 6"):
        paired_transfer_bootstrap(system(5, 0), system(6, 0))
    with pytest.raises(ValueError, match=r"two or more, .*, got 1 and 1"):
        paired_transfer_bootstrap(system(1, 0), system(1, 0))
    with pytest.raises(ValueError, match=r"confidence must be .* got 95"):
        paired_transfer_bootstrap(system(5, 0), system(5, 0), confidence=95)
