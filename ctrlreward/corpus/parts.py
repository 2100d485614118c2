"""Scores of rows, part by part, in a log that a resumed run continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ctrlreward.files import JsonLog, finite_or_none
from ctrlreward.progress import track
from ctrlreward.scorers.base import Scores


def score_parts(
    log: JsonLog,
    parts: Sequence[Sequence[int]],
    score: Callable[[list[int]], Mapping[str, Scores]],
) -> dict[str, Scores]:
    """Score rows part by part, continuing where a log ends; return all scores by row.

    Each of n rows is in one part; a score has shape (n,), and is NaN where it failed.
    """
    records: list[dict[str, list[float | None]]] = log.read()
    sizes = list(map(len, parts))
    with track("scoring", sum(sizes), done=sum(sizes[: len(records)])) as progress:
        for rows in parts[len(records) :]:
            with progress.part(len(rows)):
                scores = score(list(rows)).items()
                records.append({k: [finite_or_none(v) for v in values] for k, values in scores})
                log.append(records[-1])
    rows_in_order = np.argsort([row for rows in parts for row in rows])
    return {
        name: np.array([v for record in records for v in record[name]], np.float64)[rows_in_order]
        for name in records[0]
    }


def consecutive(count: int, size: int) -> list[range]:
    """Return the rows 0 to count - 1 in parts of `size`, and the rest."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]
