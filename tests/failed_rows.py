"""Rows of samples that fail, and why."""

from __future__ import annotations

from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, score


def failures_of(scorer: Scorer, samples: Samples) -> dict[int, str]:
    """Return the reasons why a scorer's scores of some rows are NaN."""
    return score({name: scorer[name] for name in scorer.specs}, samples).failures
