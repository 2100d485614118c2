from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm

# Rows of Tables 2 (Yelp) and 3 (literature) of Pang & Gimpel (2019): Acc, Sim, PP, GM.
PUBLISHED = [
    (0.818, 0.719, 37.3, 10.0),
    (0.819, 0.734, 26.3, 14.2),
    (0.805, 0.817, 43.3, 21.6),
    (0.818, 0.805, 29.0, 22.8),
    (0.706, 0.768, 49.0, 12.8),
]

shares = st.floats(0, 1)
cosines = st.floats(-1, 1)
perplexities = st.floats(1, 1e6)


def by_hand(acc: float, sim: float, pp: float) -> float:
    """Compute eq. 1 without numpy."""
    t1, t2, t3, t4 = GM_THRESHOLDS
    product = max(100 * acc - t1, 0) * max(100 * sim - t2, 0) * max(min(t3 - pp, pp - t4), 0)
    return float(product ** (1 / 3))


@pytest.mark.parametrize(("acc", "sim", "pp", "gm"), PUBLISHED)
def test_published_rows(acc: float, sim: float, pp: float, gm: float) -> None:
    # The paper rounds Acc and Sim to 0.001, PP and GM to 0.1.
    low = adjusted_gm(acc - 5e-4, sim - 5e-4, pp + 0.05)
    high = adjusted_gm(acc + 5e-4, sim + 5e-4, pp - 0.05)
    assert low - 0.05 <= gm <= high + 0.05
    assert adjusted_gm(acc, sim, pp) == pytest.approx(gm, abs=0.051)


@given(shares, cosines, perplexities)
def test_equals_the_formula_by_hand(acc: float, sim: float, pp: float) -> None:
    assert adjusted_gm(acc, sim, pp) == pytest.approx(by_hand(acc, sim, pp), rel=1e-9, abs=1e-9)


def test_abnormally_low_perplexity_is_penalized() -> None:
    thresholds = (63.0, 71.0, 97.0, 10.0)
    low, middle, high = adjusted_gm(0.9, 0.9, [11.0, 53.5, 96.0], thresholds)
    assert low == pytest.approx(high)
    assert low < middle
    assert adjusted_gm(0.9, 0.9, 9.0, thresholds) == 0


def test_nan_propagates() -> None:
    nan = float("nan")
    values = adjusted_gm([nan, 0.9, 0.9, 0.1], [0.9, nan, 0.9, nan], [30, 30, nan, 30])
    assert np.isnan(values).all()
