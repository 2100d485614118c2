from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ctrlreward.cli import main
from ctrlreward.ratings.agreement import fleiss_kappa, krippendorff_alpha


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
    for missing in (math.nan, np.nan):  # as pandas has it
        of_nan = [[missing if rating is None else rating for rating in row] for row in items]
        assert krippendorff_alpha(of_nan, "ordinal") == krippendorff_alpha(items, "ordinal")
        whole = [["a", "b"], ["b", "b"], ["a", "a"]]
        assert fleiss_kappa([*whole, ["a", missing], [None, "c"]]) == fleiss_kappa(whole)
        assert math.isnan(fleiss_kappa([["a", missing]]))
    # Of a single label, agreement says nothing.
    assert math.isnan(krippendorff_alpha([[1, 1], [1, n]]))
    assert math.isnan(fleiss_kappa([["good", "good"], ["good", "good"]]))


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
