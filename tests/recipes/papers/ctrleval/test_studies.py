from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ctrlreward.recipes.papers.ctrleval.studies import biased_sample, quality_levels, subset_means
from ctrlreward.recipes.papers.meta_eval.rated_files import read_ctrleval

SHAPES = npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)


@given(npst.arrays(np.float64, SHAPES, elements=st.floats(0, 1)), st.data())
def test_subset_means_are_those_of_each_text(scores: np.ndarray, data: st.DataObject) -> None:
    weights = data.draw(npst.arrays(np.float64, scores.shape, elements=st.floats(0.01, 9)))
    places = st.integers(0, scores.shape[1] - 1)
    chosen = data.draw(st.lists(places, min_size=1, unique=True))
    for row, found in enumerate(subset_means(scores, weights, chosen)):
        total = sum(weights[row, e] for e in chosen)
        assert found == pytest.approx(sum(scores[row, e] * weights[row, e] for e in chosen) / total)


def test_a_subset_without_weight_has_the_plain_mean_and_a_failed_text_stays_nan() -> None:
    scores = np.array([[0.2, 0.4, 0.9], [np.nan] * 3])
    weights = np.array([[0.0, 0.0, 1.0], [np.nan] * 3])
    first, second = subset_means(scores, weights, [0, 1])
    assert first == pytest.approx(0.3)
    assert np.isnan(second)


RATINGS = st.lists(st.just(np.nan) | st.integers(1, 5).map(float), min_size=1, max_size=40)


@given(RATINGS, st.integers(1, 5))
def test_levels_keep_the_order_of_the_ratings(ratings: list[float], levels: int) -> None:
    found = quality_levels(np.array(ratings), levels)
    rated = [(r, int(level)) for r, level in zip(ratings, found, strict=True) if not np.isnan(r)]
    assert all(0 < level <= levels for _, level in rated)
    assert all(level == 0 for r, level in zip(ratings, found, strict=True) if np.isnan(r))
    for r, level in rated:
        assert all(level <= other for s, other in rated if s > r)
    for r in {r for r, _ in rated}:  # equal ratings are in the order of the rows
        assert (same := [level for s, level in rated if s == r]) == sorted(same)
    sizes = [sum(level == of for _, of in rated) for level in range(1, levels + 1)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("rating", ["coherence", "consistency", "attribute_relevance"])
def test_the_papers_levels_have_90_texts_each(rating: str, data_dir: Path) -> None:
    """As in Figure 3, and as Python sorts the rows of the file."""
    ratings = read_ctrleval(data_dir / "ctrleval" / "data_senti.txt").ratings[rating]
    found = quality_levels(ratings)
    assert np.bincount(found).tolist() == [0, 90, 90, 90, 90]
    for level in (1, 2, 3, 4):
        rows = sorted(range(360), key=ratings.__getitem__)[90 * (level - 1) : 90 * level]
        assert np.flatnonzero(found == level).tolist() == sorted(rows)


@pytest.mark.parametrize("favoured", [1, 2, 3, 4])
def test_a_level_is_drawn_by_its_distance_from_the_favoured_one(favoured: int) -> None:
    levels = np.arange(5).repeat(4000)
    shares = biased_sample(levels, favoured, seed=3).reshape(5, 4000).mean(axis=1)
    expected = [0, *(1 / (abs(j - favoured) + 1) for j in (1, 2, 3, 4))]
    np.testing.assert_allclose(shares, expected, atol=0.03)  # four standard errors
    assert shares[favoured] == 1
