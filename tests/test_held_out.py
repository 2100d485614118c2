from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.held_out import mean_scores

values = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan))


@given(st.lists(st.tuples(values, values), min_size=1, max_size=8))
def test_means_leave_out_nan_and_fail_rate_counts_it(rows: list[tuple[float, float]]) -> None:
    logged = mean_scores({name: np.array([row[i] for row in rows]) for i, name in enumerate("ab")})
    for i, name in enumerate("ab"):
        valid = [row[i] for row in rows if row[i] == row[i]]
        if valid:
            assert logged[name] == pytest.approx(statistics.fmean(valid), rel=1e-9, abs=1e-6)
        else:
            assert math.isnan(logged[name])
    failed = [any(math.isnan(v) for v in row) for row in rows]
    assert logged["fail_rate"] == pytest.approx(sum(failed) / len(rows))
