"""QRA++: its measures against their definitions, and whole tables against loops and the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlreward.functional.reproducibility import (
    Gap,
    c4,
    compare_curves,
    compare_tables,
    correlate,
    cv_star,
    findings_upheld,
)

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
    assert all(map(math.isnan, correlate(first, second)[:2]))


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


# Whole tables

tables = st.lists(
    st.fixed_dictionaries(
        {
            metric: st.fixed_dictionaries(
                {system: st.integers(1, 9).map(float) for system in "abcd"}
            )
            for metric in ("x", "y")
        }
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=25)  # scipy correlations are slow
@given(tables)
def test_equals_a_loop_over_metrics_systems_and_pairs_of_runs(runs) -> None:
    study = compare_tables(runs)
    pairs = [(a, b) for i, a in enumerate(runs) for b in runs[i + 1 :]]
    for metric in ("x", "y"):
        agreement = study.metrics[metric]
        cells = {s: cv_star([run[metric][s] for run in runs]) for s in "abcd"}
        assert agreement.cv_star == pytest.approx(cells)
        upheld = [findings_upheld(a[metric], b[metric]) for a, b in pairs]
        assert agreement.findings == (sum(u.upheld for u in upheld), 6 * len(pairs))
        correlations = [
            correlate([a[metric][s] for s in "abcd"], [b[metric][s] for s in "abcd"])
            for a, b in pairs
        ]
        for name in ("pearson", "spearman"):
            values = [v for v in (getattr(c, name) for c in correlations) if not math.isnan(v)]
            expected = statistics.mean(values) if values else math.nan
            assert getattr(agreement.correlation, name) == pytest.approx(expected, nan_ok=True)
    means = [study.metrics[m].mean_cv_star for m in ("x", "y")]
    assert study.mean_cv_star == pytest.approx(statistics.mean(means))
    pearsons = [c.correlation.pearson for c in study.metrics.values()]
    defined = [value for value in pearsons if not math.isnan(value)]
    expected = statistics.mean(defined) if defined else math.nan
    assert study.correlation.pearson == pytest.approx(expected, nan_ok=True)
    assert study.correlation.n == len(defined)
    for system in "abcd":
        assert math.isnan(study.systems[system].pearson)  # of two metrics


@given(
    st.lists(
        st.fixed_dictionaries({m: st.integers(1, 9).map(float) for m in "wxyz"}),
        min_size=2,
        max_size=2,
    )
)
def test_a_systems_correlation_is_over_its_metrics(runs: list[dict[str, float]]) -> None:
    tables = [{metric: {"a": value} for metric, value in run.items()} for run in runs]
    tables[0]["w"]["b"] = tables[1]["w"]["b"] = 3.0
    tables[0]["x"]["b"] = 3.0  # missing in the other run
    study = compare_tables(tables)
    expected = correlate(*([run[metric] for metric in "wxyz"] for run in runs))
    assert study.systems["a"] == pytest.approx(expected, nan_ok=True)
    assert study.systems["b"].n == 1
    assert study.system_correlation.n == (not math.isnan(expected.pearson))


@pytest.mark.parametrize(
    ("second", "expected"), [((2.0, 9.0), 1.0), ((9.0, 2.0), -1.0), ((4.0, 4.0), math.nan)]
)
def test_two_systems_keep_their_order_or_swap(second: tuple[float, float], expected: float) -> None:
    study = compare_tables(
        [{"x": {"a": 1.0, "b": 2.0}}, {"x": dict(zip("ab", second, strict=True))}]
    )
    found = study.metrics["x"].correlation
    assert found == pytest.approx((expected, expected, 2), nan_ok=True)
    assert math.isnan(correlate([1.0, 2.0], second).pearson)


def test_values_that_cannot_be_compared_are_left_out_and_reported() -> None:
    first = {
        "x": {"a": 1.0, "b": 2.0, "c": math.nan, "d": -1.0, "e": 0.0},
        "only first": {"a": 1.0},
    }
    second = {"x": {"a": 1.0, "c": 3.0, "d": 1.0, "e": 0.0, "f": 4.0}}
    study = compare_tables([first, second])
    assert study.gaps == (
        Gap("x", "b", "missing in run 2"),
        Gap("x", "c", "nan in run 1"),
        Gap("x", "d", "CV* is undefined for values on both sides of 0"),
        Gap("x", "e", "CV* is undefined if all values are 0"),
        Gap("x", "f", "missing in run 1"),
        Gap("only first", "a", "missing in run 2"),
    )
    agreement = study.metrics["x"]
    assert agreement.cv_star == pytest.approx({"a": 0.0, "d": math.nan, "e": math.nan}, nan_ok=True)
    assert agreement.mean_cv_star == 0
    assert agreement.findings.total == 3  # a, d and e
    assert math.isnan(study.metrics["only first"].mean_cv_star)
    assert study.mean_cv_star == 0
    three = compare_tables([first, second, {"x": {"a": 1.0}}])
    assert Gap("x", "b", "missing in run 2, missing in run 3") in three.gaps


def test_curves_are_compared_at_common_steps() -> None:
    first = {0: 1.0, 10: 2.0, 20: 4.0, 30: math.nan, 40: 3.0}
    second = {10: 5.0, 5: 0.0, 0: 7.0, 20: 6.0, 30: 1.0, 40: 8.0}
    correlation = compare_curves([first, second])
    assert correlation == correlate([1.0, 2.0, 4.0, 3.0], [7.0, 5.0, 6.0, 8.0])
    assert compare_curves([first, {1: 2.0}]).n == 0
