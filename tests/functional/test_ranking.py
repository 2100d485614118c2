from __future__ import annotations

import math
from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from ctrlreward.functional import auc, paired_auc_bootstrap
from ctrlreward.functional.ranking import weighted_auc

NAN = float("nan")

tied = st.integers(-3, 3).map(float)
rows = st.lists(st.tuples(tied, st.booleans()), min_size=2, max_size=40)


def counted(scores: list[float], positive: list[bool]) -> float:
    """AUC by comparing each positive row with each negative one."""
    wanted = [s for s, flag in zip(scores, positive, strict=True) if flag and not isnan(s)]
    others = [s for s, flag in zip(scores, positive, strict=True) if not flag and not isnan(s)]
    if not wanted or not others:
        return NAN
    won = sum((a > b) + (a == b) / 2 for a in wanted for b in others)
    return won / (len(wanted) * len(others))


@given(rows)
def test_auc_is_the_share_of_pairs_in_order_and_mann_whitneys_u(table) -> None:
    scores, positive = map(list, zip(*table, strict=True))
    value = auc(scores, positive)
    assert value == pytest.approx(counted(scores, positive), nan_ok=True)
    if not isnan(value):
        wanted, others = (np.array(scores)[np.equal(positive, flag)] for flag in (True, False))
        pairs = len(wanted) * len(others)
        assert value == pytest.approx(mannwhitneyu(wanted, others).statistic / pairs)
        assert auc(np.negative(scores), positive) == pytest.approx(1 - value)


def test_failed_samples_are_left_out() -> None:
    assert auc([NAN, 0.9, 0.2, NAN, 0.5], [True, True, False, False, False]) == 1.0
    assert isnan(auc([NAN, 0.2], [True, False]))
    assert isnan(auc([NAN, NAN], [True, False]))
    assert isnan(auc([], []))


@given(rows, st.integers(0, 9))
def test_draws_are_those_of_resampled_rows(table: list[tuple[float, bool]], seed: int) -> None:
    scores, positive = (np.array(column) for column in zip(*table, strict=True))
    draws = np.random.default_rng(seed).integers(0, 3, size=(5, len(scores)))
    values = weighted_auc(scores, positive, draws.astype(np.float64))
    for counts, value in zip(draws, values, strict=True):
        drawn = np.repeat(np.arange(len(scores)), counts)
        expected = counted(scores[drawn].tolist(), positive[drawn].tolist())
        assert value == pytest.approx(expected, nan_ok=True)


def test_draws_of_one_label_are_left_out() -> None:
    """Clusters of one label each: a quarter of the draws has no pair, and the others are alike."""
    interval = paired_auc_bootstrap([1, 2], [2, 1], [True, False], ["a", "b"], resamples=100)
    assert interval == (1.0, -math.inf, math.inf)


def test_a_side_without_pairs_has_no_interval() -> None:
    values = paired_auc_bootstrap([1, NAN], [2, 1], [True, False], ["a", "b"])
    assert all(map(isnan, values))
