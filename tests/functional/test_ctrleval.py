from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ctrlreward.functional.ctrleval import (
    Weighting,
    label_probabilities,
    normalize_weights,
    relevance_evaluators,
    weighted_mean,
)

LOG_PROBS = st.floats(-30, 0)
SHAPES = npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)
COUNTS = st.shared(st.integers(1, 8), key="n")
SCORES = npst.arrays(np.float64, COUNTS, elements=LOG_PROBS)
WEIGHTS = npst.arrays(np.float64, COUNTS, elements=st.just(0.0) | st.floats(1e-3, 100))


# Coherence and consistency


def test_a_score_with_weight_0_does_not_count() -> None:
    scores = np.array([-np.inf, -2.0, -3.0])
    assert weighted_mean(scores, np.array([0.0, 1.0, 3.0])) == -2.75
    assert weighted_mean(scores, np.ones(3)) == -np.inf


REFERENCES: dict[Weighting, Callable[[list[float], list[float]], float]] = {
    "beta": lambda scores, beta: (
        sum(s * b for s, b in zip(scores, beta, strict=True)) / sum(beta)
        if sum(beta)
        else sum(scores) / len(scores)
    ),
    "mean": lambda scores, beta: sum(scores) / len(scores),
}


@given(SCORES, WEIGHTS)
def test_shares_fold_to_the_weighted_mean(scores: np.ndarray, beta: np.ndarray) -> None:
    expected = REFERENCES["beta"](scores.tolist(), beta.tolist())
    assert weighted_mean(scores, beta) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    shares = normalize_weights(beta)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1)
    assert shares @ scores == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(npst.arrays(np.float64, SHAPES, elements=LOG_PROBS))
def test_each_weighting_folds_the_shares_of_each_label(log_probs: np.ndarray) -> None:
    probabilities = np.exp(log_probs)
    sums = [sum(row) for row in probabilities]
    shares = [[p / total for p in row] for row, total in zip(probabilities, sums, strict=True)]
    for name, reference in REFERENCES.items():
        expected = [reference([row[k] for row in shares], sums) for k in range(len(shares[0]))]
        relevance = label_probabilities(log_probs, name)
        np.testing.assert_allclose(relevance, expected, rtol=1e-9)


@given(npst.arrays(np.float64, SHAPES, elements=LOG_PROBS))
def test_relevance_evaluators_equal_eqs_6_and_7(log_probs: np.ndarray) -> None:
    scores, beta = relevance_evaluators(log_probs)
    for row, score in zip(np.exp(log_probs), scores, strict=True):
        np.testing.assert_allclose(score, row / sum(row), rtol=1e-9)
    sums = np.exp(log_probs).sum(axis=1)
    np.testing.assert_allclose(normalize_weights(beta), sums / sum(sums), rtol=1e-9)
    assert beta.max() == 1


def test_probabilities_too_small_for_a_float_are_distinguished() -> None:
    relevance = label_probabilities(np.array([[-2000.0, -2001.0]]))
    np.testing.assert_allclose(relevance, [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
