from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ctrlreward.functional.bootstrap import Estimate
from ctrlreward.recipes.papers.meta_eval.rating_correlation import (
    sample_correlations,
    system_correlations,
)

NAN = float("nan")
MEASURES = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def tau_b(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Kendall's τ-b from its definition, pair by pair."""
    concordant = untied_x = untied_y = 0
    for i, j in itertools.combinations(range(len(x)), 2):
        concordant += np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])
        untied_x += x[i] != x[j]
        untied_y += y[i] != y[j]
    return float(concordant / np.sqrt(untied_x * untied_y))


columns = st.lists(
    st.tuples(st.integers(-3, 3), st.decimals(-2, 2, places=2).map(float), st.sampled_from("abcd")),
    min_size=3,
    max_size=12,
).filter(lambda rows: all(len({row[side] for row in rows}) > 1 for side in (0, 1)))


@settings(max_examples=40)
@given(columns)
def test_values_equal_scipy_and_the_definition(rows: list[tuple[int, float, str]]) -> None:
    x, y, clusters = (list(column) for column in zip(*rows, strict=True))
    result = sample_correlations(x, y, clusters, resamples=20)
    for name, measure in MEASURES.items():
        assert getattr(result, name).value == pytest.approx(measure(x, y).statistic)
    assert result.kendall.value == pytest.approx(tau_b(np.array(x), np.array(y)))


Rated = tuple[np.ndarray, np.ndarray, list[int], list[int]]


@pytest.fixture
def four_clusters() -> Rated:
    """Scores, ratings with ties, clusters of unequal size, and five systems in each cluster."""
    random = np.random.default_rng(0)
    clusters = np.repeat(np.arange(4), [5, 10, 5, 15])
    systems = np.tile(np.arange(5), 7)
    scores = random.normal(size=35) + clusters + systems
    ratings = np.round(scores / 3 + random.normal(size=35))
    return scores, ratings, clusters.tolist(), systems.tolist()


def quantiles_of_all_draws(
    clusters: list[int], value: Callable[[list[int]], float]
) -> Callable[[float], float]:
    """Return the quantile function of the exact bootstrap distribution of four clusters."""
    rows = [np.flatnonzero(np.equal(clusters, cluster)).tolist() for cluster in range(4)]
    values = [
        value([row for c in d for row in rows[c]]) for d in itertools.product(range(4), repeat=4)
    ]
    return lambda at: float(np.nanquantile(values, at))


@pytest.mark.parametrize("name", MEASURES)
def test_intervals_equal_those_of_all_possible_draws(four_clusters: Rated, name: str) -> None:
    scores, ratings, clusters, _ = four_clusters
    exact = quantiles_of_all_draws(
        clusters, lambda rows: MEASURES[name](scores[rows], ratings[rows]).statistic
    )
    result = getattr(sample_correlations(scores, ratings, clusters, 0.8, resamples=20_000), name)
    assert exact(0.09) <= result.low <= exact(0.11)
    assert exact(0.89) <= result.high <= exact(0.91)


@pytest.mark.parametrize("name", MEASURES)
def test_intervals_of_systems_equal_those_of_all_possible_draws(
    four_clusters: Rated, name: str
) -> None:
    scores, ratings, clusters, systems = four_clusters

    def value(rows: list[int]) -> float:
        drawn = np.array(systems)[rows]
        means = [[side[rows][drawn == s].mean() for s in range(5)] for side in (scores, ratings)]
        return float(MEASURES[name](*means).statistic)

    exact = quantiles_of_all_draws(clusters, value)
    result = system_correlations(scores, ratings, systems, clusters, 0.8, resamples=20_000)
    estimate: Estimate = getattr(result, name)
    assert estimate.value == pytest.approx(value(list(range(35))))
    assert exact(0.085) - 1e-9 <= estimate.low <= exact(0.115) + 1e-9
    assert exact(0.885) - 1e-9 <= estimate.high <= exact(0.915) + 1e-9


def test_pieces_give_the_result_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    x, y = random.normal(size=(2, 50)).round(1)
    clusters = random.integers(0, 12, size=50).tolist()
    whole = sample_correlations(x, y, clusters, resamples=30)
    monkeypatch.setattr("ctrlreward.recipes.papers.meta_eval.rating_correlation._PIECE", 700)
    assert sample_correlations(x, y, clusters, resamples=30) == whole


def test_failed_rows_are_left_out_and_counted() -> None:
    x, y = [1.0, NAN, 2.0, 3.0, 5.0, 4.0], [1.0, 2.0, NAN, 2.0, 5.0, 3.0]
    result = sample_correlations(x, y, list("aabbcc"))
    assert (result.n, result.failed) == (4, 2)
    assert result.pearson.value == pytest.approx(stats.pearsonr([1, 3, 5, 4], [1, 2, 5, 3])[0])


def test_rows_without_a_system_are_left_out_and_counted() -> None:
    x, y = [1.0, 3.0, 9.0, 4.0, 3.0, 9.0], [1.0, 5.0, 9.0, 2.0, 5.0, 0.0]
    result = system_correlations(x, y, ["a", "a", None, "b", "c", None])
    assert (result.n, result.failed) == (3, 2)
    assert result.pearson.value == pytest.approx(stats.pearsonr([2, 4, 3], [3, 2, 5])[0])


def test_a_single_cluster_gives_values_without_intervals() -> None:
    for result in (
        sample_correlations([1, 2, 3], [1, 3, 2], "aaa"),
        system_correlations([1, 2, 3], [1, 3, 2], "xyz", "aaa"),
        system_correlations([1, 2, 3], [1, 3, 2], "xyz", "abc"),
    ):
        assert result.kendall.value == pytest.approx(1 / 3)
        assert np.isnan([result.kendall.low, result.kendall.high, result.pearson.low]).all()
        assert result.note.endswith("belong to one cluster: no intervals")


def test_no_interval_if_no_draw_has_a_correlation() -> None:
    # Each of 40 systems has two clusters of its own: almost no draw contains all systems.
    systems = np.repeat(np.arange(40), 2).tolist()
    random = np.random.default_rng(6)
    result = system_correlations(*random.normal(size=(2, 80)), systems, resamples=5)
    assert np.isfinite(result.pearson.value)
    assert np.isnan([result.pearson.low, result.kendall.high]).all()
    assert result.note == "no draw has rows of every system and varies on both sides: no intervals"


def test_equal_means_of_different_sums_are_ties() -> None:
    scores, systems = [0.3, 0.3, 0.0, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5], list("aaabbbccc")
    assert np.mean(scores[:3]) != np.mean(scores[3:6])  # differ by rounding
    result = system_correlations(scores, [3, 3, 3, 1, 1, 1, 2, 2, 2], systems, [1, 2, 3] * 3)
    for name in ("spearman", "kendall"):
        value = MEASURES[name]([0.2, 0.2, 0.5], [3, 1, 2]).statistic
        assert getattr(result, name).value == pytest.approx(value)
    constant = system_correlations(scores[:6] + [0.2] * 3, [3, 3, 3, 1, 1, 1, 2, 2, 2], systems)
    assert constant.note == "every system has the score 0.2"


def test_constant_draws_are_left_out() -> None:
    # Half of the draws of two clusters contain only one. The mean of 0.1 is inexact.
    result = sample_correlations([0.1] * 3 + [0.3], [0.1] * 3 + [0.7], list("aaab"))
    for name in MEASURES:
        assert getattr(result, name) == pytest.approx((1, 1, 1))
