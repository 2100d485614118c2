"""Arguments that no formula takes raise an error that names them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ctrlreward.functional import (
    adjusted_gm,
    auc,
    compare_tables,
    correlate,
    cv_star,
    distinct_n,
    label_bias,
    non_dominated,
    paired_bootstrap,
)
from ctrlreward.functional.diversity import repetition
from ctrlreward.functional.preferences import pair_accuracy
from ctrlreward.functional.sequential import paired_difference, sign_flip_p_value
from ctrlreward.functional.transfer import checked_thresholds

NAN, INF = math.nan, math.inf
ONE = {"x": {"a": 1.0}}


@pytest.mark.parametrize(
    ("formula", "arguments", "named"),
    [
        (cv_star, [[1.0]], "values"),
        (cv_star, [[-1.0, 1.0]], "values"),
        (correlate, [[1.0], [1.0, 2.0]], "first and second"),
        (compare_tables, [[ONE]], "tables"),
        (compare_tables, [[ONE, {}]], "tables .* x and none"),
        (repetition, [[1], 0], "n, the length"),
        (distinct_n, [[[1], [2]], 1, ["a"]], "groups"),
        (label_bias, [np.zeros(4)], "log_probs"),
        (label_bias, [np.full((2, 3, 4), -INF)], "log_probs"),
        (non_dominated, [[[1.0, 2.0]], ["max", "up"]], "directions"),
        (non_dominated, [[[1.0, 2.0]], ["max"]], "values"),
        (non_dominated, [[[1.0, 2.0], [0.0, NAN]], ["max", "max"]], "values"),
        (paired_bootstrap, [[1, 2], [1], "ab"], "after"),
        (paired_bootstrap, [[NAN, NAN], [1, 2], "ab"], "before"),
        (paired_bootstrap, [[1, 2], [1, INF], "ab"], "after"),
        (paired_bootstrap, [[1, 2], [1, 2], "aa"], "clusters"),
        (paired_bootstrap, [[1, 2], [1, 2], "ab", 95], "confidence"),
        (auc, [[1, 2], [True]], "positive"),
        (pair_accuracy, [[1.0], [1.0, 2.0]], "chosen, rejected"),
        (sign_flip_p_value, [[NAN, 0.5]], "differences"),
        (lambda a, b: paired_difference(a, minus=b), [[1.0], [1.0, 2.0]], "before"),
        (lambda a, b: paired_difference(a, minus=b, level=1.5), [[1.0], [1.0]], "level"),
        (adjusted_gm, [90.0, 0.8, 40.0], "accuracy"),
        (adjusted_gm, [0.9, [0.8, 71.0], 40.0], "similarity"),
        (adjusted_gm, [0.9, 0.8, 0.5], "perplexity"),
        (checked_thresholds, [(63, 71, 97, 97)], "thresholds"),
        (checked_thresholds, [(63, INF, 97, -37)], "thresholds"),
    ],
)
def test_bad_input(formula, arguments, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        formula(*arguments)
