"""Scores of samples in memory, chunk by chunk, with their progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ctrlreward.commands.scoring_units import titled_units
from ctrlreward.commands.shards.workers import InProcess, Shard
from ctrlreward.progress import track
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores


def score_in_chunks(
    components: Mapping[str, Component], samples: Samples, chunk: int
) -> dict[str, Scores]:
    """Score samples one unit of scorers at a time, and show the progress on standard error.

    The scorers of a unit share their models (`scoring_units`). A unit scores all rows and releases
    its models before the next one loads. Scorers that are not pointwise, such as `Distinct`, get
    all rows in one chunk.

    Args:
        components: The scores to compute, by the names of the result.
        samples: n samples.
        chunk: Rows to score at a time.

    Returns:
        Arrays of shape (n,) by name; NaN for samples that failed.
    """
    scores: dict[str, Scores] = {}
    for title, unit, pointwise in titled_units(components):
        chunks = _chunks(samples, chunk if pointwise else len(samples))
        parts: list[dict[str, Scores]] = []
        with InProcess() as worker, track(title, len(samples)) as advance:
            for _, part in worker.score(unit, chunks):
                parts.append(part)
                advance(len(next(iter(part.values()))))
        scores |= {name: np.concatenate([part[name] for part in parts]) for name in unit}
    return {name: scores[name] for name in components}


def _chunks(samples: Samples, size: int) -> Iterator[Shard]:
    for number, first in enumerate(range(0, len(samples), size)):
        part = samples[first : first + size]
        rows = range(len(part))
        yield Shard(number, part, rows, [f"sample {first + i}" for i in rows])
