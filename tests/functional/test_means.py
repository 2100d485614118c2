from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.means import valid_mean


@given(st.lists(st.floats(-100, 100) | st.just(math.nan)))
def test_valid_mean_equals_the_mean_without_nan(values: list[float]) -> None:
    valid = [value for value in values if not math.isnan(value)]
    expected = statistics.mean(valid) if valid else math.nan
    result = valid_mean(np.array(values, dtype=np.float64))
    assert result == pytest.approx(expected, abs=1e-9, nan_ok=True)
