"""Agreement of raters or runs on labels: Fleiss' κ and Krippendorff's α, type III of QRA++.

Belz (2025), https://arxiv.org/abs/2505.17043; the other types are in `functional.reproducibility`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np

from ctrlreward.extras import import_extra


def fleiss_kappa(labels: Sequence[Sequence[str | float | None]]) -> float:
    """Return Fleiss' κ, chance-corrected agreement, of labels of shape (items, raters).

    1 if all raters agree, 0 at chance level, negative below it; NaN if only one label occurs. Items
    with a missing label, None or NaN, do not count.

    Examples:
        >>> fleiss_kappa([["good", "good"], ["bad", "bad"]])
        1.0
        >>> fleiss_kappa([["good", "bad"], ["bad", "good"]])
        -1.0
    """
    inter_rater = import_extra("statsmodels.stats.inter_rater", "Fleiss' κ")
    complete = [row for row in labels if not any(map(is_missing, row))]
    if len({label for row in complete for label in row}) < 2:
        return nan
    counts, _ = inter_rater.aggregate_raters(np.asarray(complete, dtype=str))
    return float(inter_rater.fleiss_kappa(counts))


def is_missing(rating: str | float | None) -> bool:
    """Return whether a rating is None or NaN."""
    return rating is None or rating != rating


def krippendorff_alpha(
    ratings: Sequence[Sequence[str | float | None]], level: str = "nominal"
) -> float:
    """Return Krippendorff's α, chance-corrected agreement, of ratings of shape (items, raters).

    They are labels for the nominal level, otherwise numbers; None or NaN is a missing rating, and
    items with two or more count. 1 if all raters agree, 0 at chance level, negative below it; NaN
    if fewer than two different ratings remain.

    Examples:
        >>> krippendorff_alpha([["good", "good"], ["bad", "bad"], ["good", None]])
        1.0
        >>> krippendorff_alpha([[1, 2], [2, 1]], level="interval")
        -0.5
    """
    krippendorff = import_extra("krippendorff", "Krippendorff's α")
    rows = [row for row in ratings if sum(not is_missing(rating) for rating in row) > 1]
    distinct = dict.fromkeys(r for row in rows for r in row if r is not None and r == r)
    if len(distinct) < 2:
        return nan
    codes: dict[object, float] = {
        r: i if level == "nominal" else float(r) for i, r in enumerate(distinct)
    }
    data = np.array([[codes.get(rating, nan) for rating in row] for row in rows])
    return float(krippendorff.alpha(reliability_data=data.T, level_of_measurement=level))
