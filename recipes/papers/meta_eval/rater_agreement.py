"""Agreement of several raters or runs on labels: Fleiss' κ and Krippendorff's α, type III of QRA++.

Belz (2025), https://arxiv.org/abs/2505.17043; the other types are in `functional.agreement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from ctrlreward.extras import import_extra
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.papers.meta_eval.rated_files import optional_cells
from ctrlreward.tables.columns import number_column
from ctrlreward.tables.rows import read_placed

Rating = TypeVar("Rating")
Level: TypeAlias = Literal["nominal", "ordinal", "interval", "ratio"]


def raters(data: Path, ratings: Sequence[str] = (), level: Level = "nominal") -> None:
    """Measure how well raters or runs agree on labels: Fleiss' κ and Krippendorff's α.

    Args:
        data: A row per item: a .jsonl, .csv or .parquet file. An empty cell is a missing rating.
        ratings: Column of each rater or run: `--ratings anna ben`.
        level: Level of measurement of α: nominal for labels, otherwise numbers. κ is of labels.
    """
    if len(ratings) < 2:
        raise ValueError(
            f"--ratings must be the columns of 2 or more raters, got {', '.join(ratings) or 'none'}"
        )
    rows, places = read_placed(local_file(data))
    labels = list(zip(*(optional_cells(rows, name) for name in ratings), strict=True))
    whole = [[str(label) for label in row] for row in labels if None not in row]
    numbers: list[list[str | float | None]] = [list(row) for row in labels]
    if level != "nominal":
        columns = zip(*(number_column(rows, name, places) for name in ratings), strict=True)
        numbers = [[None if isnan(x) else float(x) for x in row] for row in columns]
    kappa = fleiss_kappa(whole) if whole else nan
    print(f"Fleiss' κ: {kappa:.3f}, of {len(whole)} items with a rating by each of {len(ratings)}")
    alpha = krippendorff_alpha(numbers, level)
    print(f"Krippendorff's α: {alpha:.3f}, {level}, of {len(rows)} items")


def fleiss_kappa(labels: Sequence[Sequence[str]]) -> float:
    """Return Fleiss' κ, the chance-corrected agreement of several raters or runs (type III).

    Args:
        labels: The label that each rater gave each item, shape (items, raters).

    Returns:
        1 if all raters agree, 0 at chance level, negative below it; NaN if only one label occurs.

    Raises:
        ValueError: `items` is empty, or items differ in their number of labels or have fewer
            than two.
        ImportError: statsmodels is not installed.

    Examples:
        >>> fleiss_kappa([["good", "good"], ["bad", "bad"]])
        1.0
        >>> fleiss_kappa([["good", "bad"], ["bad", "good"]])
        -1.0
    """
    inter_rater = import_extra("statsmodels.stats.inter_rater", "Fleiss' κ")
    counts, _ = inter_rater.aggregate_raters(np.asarray(_rectangle(labels), dtype=str))
    return float(inter_rater.fleiss_kappa(counts)) if counts.shape[1] > 1 else nan


def krippendorff_alpha(
    ratings: Sequence[Sequence[str | float | None]],
    level: Level = "nominal",
) -> float:
    """Return Krippendorff's α, chance-corrected agreement with missing ratings (type III).

    Only items with two or more ratings count.

    Args:
        ratings: Shape (items, raters): labels for the nominal level, otherwise numbers. None
            marks a missing rating.
        level: Level of measurement, which sets the distance between two ratings.

    Returns:
        1 if all raters agree, 0 at chance level, negative below it; NaN if fewer than two
        different ratings remain.

    Raises:
        ValueError: `items` is empty, or items differ in their number of ratings or have fewer
            than two; or a rating is not a number and `level` is not `"nominal"`.
        ImportError: krippendorff is not installed.

    Examples:
        >>> krippendorff_alpha([["good", "good"], ["bad", "bad"], ["good", None]])
        1.0
        >>> krippendorff_alpha([[1, 2], [2, 1]], level="interval")
        -0.5
    """
    krippendorff = import_extra("krippendorff", "Krippendorff's α")
    rows = [row for row in _rectangle(ratings) if sum(r is not None for r in row) > 1]
    present = [rating for row in rows for rating in row if rating is not None]
    codes = {rating: float(i) for i, rating in enumerate(dict.fromkeys(present))}
    if level != "nominal":
        for rating in codes:
            if isinstance(rating, str):
                raise ValueError(
                    f"rating {rating!r} is not a number, but level = {level!r} takes numbers. For "
                    "labels use level = 'nominal'."
                )
            codes[rating] = float(rating)
    if len(codes) < 2:
        return nan
    data = np.array([[nan if r is None else codes[r] for r in row] for row in rows]).T
    return float(krippendorff.alpha(reliability_data=data, level_of_measurement=level))


def _rectangle(ratings: Sequence[Sequence[Rating]]) -> list[list[Rating]]:
    """Return items × raters as lists; raise unless all items have the same 2 or more ratings."""
    rows = [list(row) for row in ratings]
    for i, row in enumerate(rows):
        if len(row) < 2 or len(row) != len(rows[0]):
            raise ValueError(
                f"item {i} has {len(row)} ratings and item 0 has {len(rows[0])}, "
                "must be one rating from each of 2 or more raters"
            )
    if not rows:
        raise ValueError("items is empty, must be one or more, each with its ratings")
    return rows
