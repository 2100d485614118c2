from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.frequency import inverse_frequency, log_inverse_frequency

counts = st.lists(st.integers(0, 1000), min_size=1)


@given(counts, st.integers(1000, 10**9))
def test_log_iwf_equals_the_formula_token_by_token(counts: list[int], sentences: int) -> None:
    expected = [math.log((1 + sentences) / count) if count else 0.0 for count in counts]
    weights = log_inverse_frequency(counts, sentences)
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-12)
    assert (weights >= 0).all()


def test_iwf_equals_a_published_weight() -> None:
    # Line 109 of the published table, a token that occurs in one of 98,344,542 sentences.
    assert inverse_frequency([1], 98_344_542)[0] == pytest.approx(18.403987615749035, abs=1e-12)
