from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.papers.li2018.preferences import (
    GMFit,
    best_scale,
    fit_gm,
    hinge_loss,
    pairwise_agreement,
    pairwise_preferences,
)

PLANTED = (20.0, 30.0, 300.0, -10.0)

Pairs = tuple[np.ndarray, np.ndarray]


def outputs(n: int, seed: int) -> np.ndarray:
    """Draw accuracy, similarity and perplexity of outputs; most have GM 0 by default."""
    random = np.random.default_rng(seed)
    perplexity = np.exp(random.normal(4, 1, n)).clip(1)
    return np.column_stack([random.uniform(size=(n, 2)), perplexity])


def planted(n: int, seed: int, noise: float = 0.0) -> Pairs:
    """Draw pairs with clear preferences by GM under PLANTED, eight outputs per item."""
    random = np.random.default_rng([seed, 1])  # independent of the scores
    scores = outputs(n, seed)
    ratings = adjusted_gm(*scores.T, PLANTED) + noise * random.normal(size=n)
    preferred, rejected = pairwise_preferences(ratings, [i // 8 for i in range(n)], margin=1.0)
    return scores[preferred], scores[rejected]


def total_loss(pairs: Pairs, thresholds: tuple[float, float, float, float], scale: float) -> float:
    """Sum the hinge losses in plain Python; a scale of 1 is the paper's loss."""
    t1, t2, t3, t4 = thresholds

    def gm(row: np.ndarray) -> float:
        acc, sim, pp = row
        product = max(100 * acc - t1, 0) * max(100 * sim - t2, 0) * max(min(t3 - pp, pp - t4), 0)
        return float(product ** (1 / 3))

    return sum(max(0.0, scale * (gm(b) - gm(a)) + 1) for a, b in zip(*pairs, strict=True))


# Fitting


@pytest.fixture(scope="module")
def noisy() -> tuple[Pairs, GMFit]:
    pairs = planted(160, seed=1, noise=8.0)
    return pairs, fit_gm(*pairs)


def test_planted_preferences_are_recovered_on_unseen_items() -> None:
    fit = fit_gm(*planted(160, seed=2))
    assert fit.agreement.agreed > 0.98
    unseen = planted(400, seed=3)
    assert pairwise_agreement(*unseen, fit.thresholds).agreed > 0.95
    assert pairwise_agreement(*unseen).agreed < 0.5


def test_no_other_thresholds_and_scale_are_better(noisy: tuple[Pairs, GMFit]) -> None:
    pairs, fit = noisy
    assert fit.loss == pytest.approx(total_loss(pairs, fit.thresholds, fit.scale))
    assert fit.agreement == pairwise_agreement(*pairs, fit.thresholds)
    assert fit.default_agreement == pairwise_agreement(*pairs, GM_THRESHOLDS)
    assert fit.agreement.agreed > fit.default_agreement.agreed
    grid = itertools.product((0, 20, 40), (0, 20, 40), (100, 300), (-100, -10))
    for point in [GM_THRESHOLDS, PLANTED, *grid]:
        for factor in (0.0, 0.5, 1.0, 2.0):
            assert fit.loss <= total_loss(pairs, point, factor * fit.scale)


@pytest.mark.soak
def test_high_perplexities_make_the_papers_loss_prefer_nothing() -> None:
    # The reason for fitting the scale: the paper's loss is smallest if every GM is 0.
    better, worse = planted(80, seed=8, noise=60.0)
    better, worse = better * [1, 1, 1000], worse * [1, 1, 1000]
    assert fit_gm(better, worse, scale=1.0).agreement.tied > 0.9
    assert fit_gm(better, worse).agreement.agreed > 0.5


def test_the_default_is_kept_if_nothing_can_be_learned() -> None:
    same = outputs(5, seed=6)
    fit = fit_gm(same, same)  # all gains are 0, so every t costs 1 per pair
    assert fit.thresholds == GM_THRESHOLDS
    assert (fit.scale, fit.loss) == (0, 5)
    assert fit.agreement == (0.0, 1.0)


def test_infinite_perplexities_are_accepted() -> None:
    better, worse = [[0.9, 0.9, 400.0]], [[0.9, 0.9, math.inf]]
    fit = fit_gm(better, worse)
    assert fit.loss == pytest.approx(0)
    assert fit.agreement == (1.0, 0.0)
    assert fit.default_agreement == (0.0, 1.0)


# Degenerate fits


# Loss and agreement

gains = st.lists(st.floats(-100, 100).map(lambda gain: round(gain, 3)), min_size=1, max_size=8)


def test_gains_that_sum_to_0_up_to_rounding_have_a_best_scale() -> None:
    random = np.random.default_rng(0)
    summed = []
    for _ in range(300):
        half = random.normal(size=10)
        gains = random.permutation(np.concatenate([half, -half]))
        summed.append(gains.sum())
        # No scale improves on the loss at scale 0.
        assert hinge_loss(gains, best_scale(gains)) == pytest.approx(20)
    assert min(summed) < 0 < max(summed)


rows = st.tuples(st.floats(0, 1), st.floats(-1, 1), st.floats(1, 500))


@given(st.lists(st.tuples(rows, rows), min_size=1, max_size=8))
@settings(max_examples=50)
def test_agreement_disagreement_and_ties_sum_to_1(pairs: list) -> None:
    better, worse = (list(side) for side in zip(*pairs, strict=True))
    forward, backward = pairwise_agreement(better, worse), pairwise_agreement(worse, better)
    assert forward.agreed + backward.agreed + forward.tied == pytest.approx(1)
    assert forward.tied == backward.tied
    gains = [adjusted_gm(*a) - adjusted_gm(*b) for a, b in pairs]
    assert forward.agreed == sum(gain > 0 for gain in gains) / len(pairs)


def test_two_zeros_are_a_tie_and_do_not_count_as_agreed() -> None:
    worthless = [0.1, 0.9, 30]
    pairs = ([[0.9, 0.9, 30], worthless, worthless], [worthless, worthless, [0.9, 0.9, 30]])
    assert pairwise_agreement(*pairs) == pytest.approx((1 / 3, 1 / 3))


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
    preferred, rejected = pairwise_preferences([5.0, math.nan, 3.0], ["x", "x", "x"])
    assert (preferred.tolist(), rejected.tolist()) == ([0], [2])
