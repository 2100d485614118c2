from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.cli import main
from ctrlreward.ratings.agreement import fleiss_kappa, krippendorff_alpha

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


def test_the_command_reads_a_column_per_rater(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: Callable[..., str]
) -> None:
    file = tmp_path / "rated.csv"
    file.write_text("anna,ben,carla\n1,1,1\n2,1,2\n2,2,\n1,2,2\n")
    command = ["meta-eval", "raters", str(file)]
    # Pairs that agree in the 3 whole items: 3 + 1 + 1 of 9. By chance: five ratings are 1, four 2.
    main([*command, "--ratings", "anna", "ben", "carla"])
    kappa = (5 / 9 - 41 / 81) / (1 - 41 / 81)
    # Of 11 ratings 5 are 1: of 110 ordered pairs 60 differ; within items 0 + 2 + 0 + 2.
    alpha = 1 - 4 * 10 / 60
    assert capsys.readouterr().out.splitlines() == [
        f"Fleiss' κ: {kappa:.3f}, of 3 items with 3 ratings",
        f"Krippendorff's α: {alpha:.3f}, nominal, of 4 items",
    ]
    main([*command, "--ratings", "anna", "ben", "carla", "--level", "interval"])
    assert f"α: {alpha:.3f}, interval" in capsys.readouterr().out  # of two values: the same
    assert "--ratings" in fails(*command, "--ratings=anna")
