"""Empty texts: they get NaN instead of a score, and a warning that names them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlreward.items import item_logger
from ctrlreward.scorers.base import Scores

log = item_logger(__name__)


def nonempty(score: str, **columns: Sequence[str]) -> list[int]:
    """Return the indices of the samples that have text in every column, in order.

    A text of white space only is empty. A warning names each sample that is left out.

    Args:
        score: Name of the score that is NaN, for the warning (`"perplexity"`).
        columns: Columns of equal length, by their names in `Samples`.
    """
    kept = []
    for i, row in enumerate(zip(*columns.values(), strict=True)):
        empty = [name for name, text in zip(columns, row, strict=True) if not text.strip()]
        if empty:
            log.warning("%s[%d] is empty: %s is NaN", empty[0], i, score)
        else:
            kept.append(i)
    return kept


def scatter(values: Sequence[float] | Scores, kept: Sequence[int], n: int) -> Scores:
    """Return an array of shape (n,) with the values at the indices `kept` and NaN elsewhere."""
    scores = np.full(n, np.nan)
    scores[list(kept)] = values
    return scores
