"""Conservative and conditional totals, against loops over the samples."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.aggregates import counted_where, mean_minus_deviation

numbers = st.floats(-100, 100)
failing = st.one_of(numbers, st.just(math.nan))
tables = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(failing, min_size=n, max_size=n), min_size=1, max_size=4)
)


@given(tables, st.floats(0, 3))
def test_mean_minus_deviation_is_the_formula_of_each_sample(rows, penalty: float) -> None:
    totals = mean_minus_deviation(np.array(rows), penalty)
    for i, total in enumerate(totals):
        members = [row[i] for row in rows]
        if any(map(math.isnan, members)):
            assert math.isnan(total)
        else:
            expected = statistics.fmean(members) - penalty * statistics.pstdev(members)
            assert total == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(failing, failing), min_size=1, max_size=6), numbers, st.booleans())
def test_a_score_counts_where_its_condition_holds(rows, at_least: float, higher: bool) -> None:
    scores, condition = map(np.array, zip(*rows, strict=True))
    counted = counted_where(scores, condition, at_least, higher)
    for value, score, reached in zip(counted, scores, condition, strict=True):
        if math.isnan(score) or math.isnan(reached):
            assert math.isnan(value)
        elif reached >= at_least:
            assert value == score
        else:
            gain = score if higher else -score
            assert value == (0 if gain > 0 else score)
