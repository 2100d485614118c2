from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from ctrlreward.ratings.correlations import rating_correlations

NAN = float("nan")
MEASURES = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


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


def test_intervals_equal_those_of_all_possible_draws(four_clusters: Rated) -> None:
    scores, ratings, clusters, systems = four_clusters
    members = np.array(systems)

    def of_rows(name: str, rows: list[int]) -> float:
        return float(MEASURES[name](scores[rows], ratings[rows]).statistic)

    def of_systems(name: str, rows: list[int]) -> float:
        drawn = members[rows]
        means = [[side[rows][drawn == s].mean() for s in range(5)] for side in (scores, ratings)]
        return float(MEASURES[name](*means).statistic)

    for level, value in ((None, of_rows), (systems, of_systems)):
        found = rating_correlations(scores, ratings, clusters, level, resamples=1000).estimates
        for name, estimate in found.items():
            exact = quantiles_of_all_draws(clusters, lambda rows, v=value, n=name: v(n, rows))
            assert estimate.value == pytest.approx(value(name, list(range(35))))
            assert exact(0.01) - 1e-9 <= estimate.low <= exact(0.04) + 1e-9
            assert exact(0.96) - 1e-9 <= estimate.high <= exact(0.99) + 1e-9


def test_rows_without_a_score_rating_or_system_are_left_out() -> None:
    """Without a score or a rating, they count as failed; without a system, they do not."""
    x, y = [1.0, NAN, 2.0, 3.0, 5.0, 4.0], [1.0, 2.0, NAN, 2.0, 5.0, 3.0]
    result = rating_correlations(x, y, list("aabbcc"))
    assert (result.n, result.failed) == (4, 2)
    expected = stats.pearsonr([1, 3, 5, 4], [1, 2, 5, 3])[0]
    assert result.estimates["pearson"].value == pytest.approx(expected)
    x, y = [1.0, 3.0, 9.0, 4.0, 3.0, NAN, NAN], [1.0, 5.0, 9.0, 2.0, 5.0, 0.0, 1.0]
    result = rating_correlations(x, y, systems=["a", "a", None, "b", "c", None, "c"])
    assert (result.n, result.failed) == (3, 1)
    expected = stats.pearsonr([2, 4, 3], [3, 2, 5])[0]
    assert result.estimates["pearson"].value == pytest.approx(expected)


@pytest.mark.parametrize(("clusters", "systems"), [("aaa", None), ("aaa", "xyz"), ("abc", "xyz")])
def test_a_single_cluster_gives_values_without_intervals(
    clusters: str, systems: str | None
) -> None:
    result = rating_correlations([1, 2, 3], [1, 3, 2], clusters, systems)
    assert result.estimates["kendall"].value == pytest.approx(1 / 3)
    for estimate in result.estimates.values():
        assert np.isnan([estimate.low, estimate.high]).all()
    assert result.note


def test_equal_means_of_different_sums_are_ties() -> None:
    scores, systems = [0.3, 0.3, 0.0, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5], list("aaabbbccc")
    assert np.mean(scores[:3]) != np.mean(scores[3:6])  # differ by rounding
    ratings = [3, 3, 3, 1, 1, 1, 2, 2, 2]
    result = rating_correlations(scores, ratings, [1, 2, 3] * 3, systems)
    for name in ("spearman", "kendall"):
        value = MEASURES[name]([0.2, 0.2, 0.5], [3, 1, 2]).statistic
        assert result.estimates[name].value == pytest.approx(value)
    constant = rating_correlations(scores[:6] + [0.2] * 3, ratings, systems=systems)
    assert np.isnan(constant.estimates["pearson"].value)
