from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.agreement import c4, correlate, cv_star, findings_upheld

# Type I

scores = st.lists(st.floats(0.1, 1e4), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("n", "table"),
    [(2, 0.7979), (3, 0.8862), (4, 0.9213), (5, 0.9400), (10, 0.9727), (1000, 0.99975)],
)
def test_c4_equals_the_table_of_control_charts(n: int, table: float) -> None:
    assert c4(n) == pytest.approx(table, abs=5e-5)


@given(scores)
def test_equals_the_formula_with_the_standard_library(values: list[float]) -> None:
    n = len(values)
    unbiased = math.sqrt(2 / (n - 1)) * math.gamma(n / 2) / math.gamma((n - 1) / 2)
    expected = (1 + 0.25 / n) * statistics.stdev(values) / unbiased / statistics.mean(values) * 100
    assert cv_star(values) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert math.isnan(cv_star([*values, math.nan]))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"values has 1 item: CV\* compares 2 or more"):
        cv_star([1.0])
    with pytest.raises(ValueError, match=r"values = \[-1\.0, 1\.0\] have mean 0"):
        cv_star([-1.0, 1.0])
    with pytest.raises(ValueError, match=r"n = 1: a sample standard deviation takes 2 or more"):
        c4(1)
    with pytest.raises(ValueError, match="same length, got 1 and 2 values"):
        correlate([1.0], [1.0, 2.0])


# Type II

pairs = st.lists(
    st.tuples(st.integers(-20, 20).map(float), st.integers(-20, 20).map(float)),
    min_size=3,
    max_size=15,
)


@given(pairs, st.sampled_from([math.nan, math.inf]))
def test_correlations_equal_the_definitions(
    values: list[tuple[float, float]], failed: float
) -> None:
    first, second = zip(*values, strict=True)
    correlation = correlate([5.0, *first, failed], [failed, *second, 5.0])  # both are left out
    assert correlation.n == len(values)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(correlation.pearson)
        assert math.isnan(correlation.spearman)
        return

    def ranks(side: Sequence[float]) -> list[float]:
        return [(sum(b < a for b in side) + sum(b <= a for b in side) + 1) / 2 for a in side]

    assert correlation.pearson == pytest.approx(statistics.correlation(first, second), abs=1e-9)
    expected = statistics.correlation(ranks(first), ranks(second))
    assert correlation.spearman == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0, 2.0], [3.0, 4.0]), ([], []), ([1.0, 2.0, math.nan], [1.0, 2.0, 3.0])],
)
def test_correlation_is_nan_where_undefined(first: list[float], second: list[float]) -> None:
    correlation = correlate(first, second)
    assert math.isnan(correlation.pearson)
    assert math.isnan(correlation.spearman)


# Type IV

values_of_systems = st.dictionaries(
    st.sampled_from("abcdef"), st.sampled_from([1.0, 2.0, 3.0, math.nan])
)


@given(values_of_systems, values_of_systems)
def test_findings_equal_a_loop_over_pairs(first, second) -> None:
    def ahead(values: dict[str, float], a: str, b: str) -> str:
        return a if values[a] > values[b] else b if values[b] > values[a] else "tie"

    upheld = total = 0
    for a in "abcdef":
        for b in "abcdef":
            known = [v.get(s, math.nan) for v in (first, second) for s in a + b]
            if a < b and not any(map(math.isnan, known)):
                total += 1
                upheld += ahead(first, a, b) == ahead(second, a, b)
    findings = findings_upheld(first, second)
    assert findings == (upheld, total)
    assert findings.share == pytest.approx(upheld / total if total else math.nan, nan_ok=True)
