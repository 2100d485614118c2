from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.functional.agreement import (
    c4,
    correlate,
    cv_star,
    findings_upheld,
    fleiss_kappa,
    krippendorff_alpha,
)

# Type I

# Original and reproduced score, and CV* as printed in the reproduction paper.
PUBLISHED = [
    ((97.1, 98.2), 1.12),
    ((94.3, 96.6), 2.40),
    ((90.7, 96.9), 6.59),
    ((61.0, 59.7), 2.15),
    ((87.4, 88.4), 1.13),
    ((90.7, 95.9), 5.56),
    ((31.3, 31.5), 0.64),
]

scores = st.lists(st.floats(0.1, 1e4), min_size=2, max_size=12)


@pytest.mark.parametrize(("pair", "published"), PUBLISHED)
def test_published_pairs(pair: tuple[float, float], published: float) -> None:
    assert cv_star(pair) == pytest.approx(published, abs=0.0051)


@pytest.mark.parametrize(
    ("n", "table"), [(2, 0.7979), (3, 0.8862), (4, 0.9213), (5, 0.9400), (10, 0.9727)]
)
def test_c4_equals_the_table_of_control_charts(n: int, table: float) -> None:
    assert c4(n) == pytest.approx(table, abs=5e-5)


@given(scores)
def test_equals_the_formula_with_the_standard_library(values: list[float]) -> None:
    n = len(values)
    unbiased = math.sqrt(2 / (n - 1)) * math.gamma(n / 2) / math.gamma((n - 1) / 2)
    expected = (1 + 0.25 / n) * statistics.stdev(values) / unbiased / statistics.mean(values) * 100
    assert cv_star(values) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(scores, st.floats(0.01, 100))
def test_unit_and_order_do_not_matter(values: list[float], unit: float) -> None:
    other = [unit * value for value in reversed(values)]
    assert cv_star(other) == pytest.approx(cv_star(values), rel=1e-6, abs=1e-6)


def test_equal_values_have_cv_star_0() -> None:
    assert cv_star([3.0, 3.0, 3.0]) == 0


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_cv_star_of_two_values_is_about_their_distance_in_per_cent_of_their_mean(
    a: float, b: float
) -> None:
    assert cv_star([a, b]) == pytest.approx(100 * abs(a - b) / ((a + b) / 2), rel=0.0035)


def test_many_values_do_not_overflow() -> None:
    assert c4(1000) == pytest.approx(1, abs=1e-3)


def test_nan_propagates() -> None:
    assert math.isnan(cv_star([1.0, math.nan]))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"values has 1 item: CV\* compares 2 or more"):
        cv_star([1.0])
    with pytest.raises(ValueError, match=r"values = \[-1\.0, 1\.0\] have mean 0"):
        cv_star([-1.0, 1.0])
    with pytest.raises(ValueError, match=r"n = 1: a sample standard deviation takes 2 or more"):
        c4(1)


# Type II

pairs = st.lists(
    st.tuples(st.integers(-20, 20).map(float), st.integers(-20, 20).map(float)),
    min_size=3,
    max_size=15,
)


@given(pairs)
def test_correlations_equal_the_definitions(values: list[tuple[float, float]]) -> None:
    first, second = zip(*values, strict=True)
    correlation = correlate(first, second)
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
def test_findings_equal_a_loop_over_pairs(
    first: dict[str, float], second: dict[str, float]
) -> None:
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


def test_a_tie_is_upheld_only_by_a_tie() -> None:
    assert findings_upheld({"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}).share == 1
    assert findings_upheld({"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.1}).share == 0
    assert findings_upheld({"a": 1.0, "b": 1.5}, {"a": 2.0, "b": 2.0}).share == 0


# Type III

label_rows = st.integers(2, 4).flatmap(
    lambda raters: st.lists(
        st.lists(st.sampled_from(["good", "bad", "mixed"]), min_size=raters, max_size=raters),
        min_size=1,
        max_size=8,
    )
)


@given(label_rows)
def test_kappa_equals_fleiss_formula(rows: list[list[str]]) -> None:
    items, raters = len(rows), len(rows[0])
    everything = [label for row in rows for label in row]
    chance = sum((everything.count(label) / len(everything)) ** 2 for label in set(everything))
    agreeing = [
        sum(row.count(label) * (row.count(label) - 1) for label in set(row)) for row in rows
    ]
    observed = sum(agreeing) / (items * raters * (raters - 1))
    kappa = fleiss_kappa(rows)
    if chance == 1:
        assert math.isnan(kappa)
    else:
        assert kappa == pytest.approx((observed - chance) / (1 - chance), abs=1e-9)


@given(label_rows)
def test_alpha_equals_the_formula_over_pairs_of_ratings(rows: list[list[str]]) -> None:
    everything = [label for row in rows for label in row]
    differ = sum(a != b for a in everything for b in everything)
    expected = differ / (len(everything) - 1)
    observed = sum(sum(a != b for a in row for b in row) / (len(row) - 1) for row in rows)
    alpha = krippendorff_alpha(rows)
    if differ == 0:
        assert math.isnan(alpha)
    else:
        assert alpha == pytest.approx(1 - observed / expected, abs=1e-9)


def test_alpha_equals_the_example_of_its_package() -> None:
    n = None
    raters = [
        [n, n, n, n, n, 3, 4, 1, 2, 1, 1, 3, 3, n, 3],
        [1, n, 2, 1, 3, 3, 4, 3, n, n, n, n, n, n, n],
        [n, n, 2, 1, 3, 4, 4, n, 2, 1, 1, 3, 3, n, 4],
    ]
    items = list(zip(*raters, strict=True))
    assert krippendorff_alpha(items) == pytest.approx(0.691358, abs=1e-6)
    assert krippendorff_alpha(items, "interval") == pytest.approx(0.810845, abs=1e-6)
    named = [["abcd"[r - 1] if r else None for r in item] for item in items]
    assert krippendorff_alpha(named) == pytest.approx(0.691358, abs=1e-6)


@pytest.mark.parametrize(
    "ratings",
    [
        [["a", None], ["b", None]],
        [["a", "a"], ["b", None]],
        [[None, None], [None, None]],
        [["a", "a"], ["a", "a"]],
    ],
)
def test_alpha_is_nan_for_fewer_than_two_different_ratings(
    ratings: list[list[str | None]], recwarn: pytest.WarningsRecorder
) -> None:
    assert math.isnan(krippendorff_alpha(ratings))
    assert not recwarn.list


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval", "ratio"])
def test_items_with_a_single_rating_do_not_count(level: Any) -> None:
    pairs = [[1, 2], [2, 2], [3, 3], [4, 3], [1, 1]]
    alone = [[5, None], [None, 2]]
    assert krippendorff_alpha(pairs + alone, level) == pytest.approx(
        krippendorff_alpha(pairs, level)
    )


@pytest.mark.parametrize("measure", [fleiss_kappa, krippendorff_alpha])
def test_malformed_ratings_raise(measure: Callable[[list[list[str]]], float]) -> None:
    with pytest.raises(ValueError, match="item 1 has 1 ratings and item 0 has 2"):
        measure([["a", "b"], ["a"]])
    with pytest.raises(ValueError, match="item 0 has 1 ratings"):
        measure([["a"]])
    with pytest.raises(ValueError, match="there are no items"):
        measure([])


@pytest.mark.parametrize(
    ("measure", "package"),
    [(fleiss_kappa, "statsmodels"), (krippendorff_alpha, "krippendorff")],
)
def test_a_missing_package_is_named(
    measure: Callable[[list[list[str]]], float], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, f"{package}.stats.inter_rater"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=rf"needs {package}: pip install 'ctrlreward\[agreement\]'"
    ):
        measure([["a", "b"]])


def test_mismatched_values_raise() -> None:
    with pytest.raises(ValueError, match="first has 1 values and second has 2"):
        correlate([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="rating 'good' is not a number: level = 'ordinal'"):
        krippendorff_alpha([["good", "bad"]], "ordinal")
