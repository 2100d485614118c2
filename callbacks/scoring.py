"""What is asked of scorers, and what is logged of their scores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ctrlreward.functional.statistics import valid_mean
from ctrlreward.scorers.base import Component, Scores

FAIL_RATE = "fail_rate"
TABLE = "samples"
SCORED_STEP = "scored_step"


def check_scores(scores: Mapping[str, Component]) -> None:
    """Refuses what could not be scored or logged.

    Raises:
        TypeError: A value is no component of a scorer.
        ValueError: There are no scores, or a name is reserved.
    """
    if not scores:
        raise ValueError('scores is empty: give at least one, {"coherence": ctrleval["coherence"]}')
    for key, component in scores.items():
        if not isinstance(component, Component):
            raise TypeError(
                f"scores[{key!r}] is a {type(component).__name__}: give one score of a scorer, "
                'such as ctrleval["coherence"]'
            )
        if key in (FAIL_RATE, TABLE, SCORED_STEP):
            raise ValueError(f"scores has the name {key!r}, which is logged anyway: give another")


def summary(scores: Mapping[str, Scores]) -> dict[str, float]:
    """The mean of each score over the samples that have it (NaN if none has), and the fail rate.

    The fail rate is the share of samples in which at least one score is NaN, in [0, 1], lower is
    better.
    """
    means = {key: valid_mean(values) for key, values in scores.items()}
    failed = np.isnan(np.stack(list(scores.values()))).any(axis=0)
    return {**means, FAIL_RATE: float(failed.mean())}
