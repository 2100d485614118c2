"""Resumable scoring in chunks: each chunk's scores are on disk before the next chunk starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ctrlreward.commands.scoring_units import scoring_units
from ctrlreward.files import JsonLog
from ctrlreward.progress import track
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score


class ScoreLog:
    """Scores of an unfinished run, appended to a file chunk by chunk.

    The first line holds the run's identity. Every other line holds the scores of some scorers for
    their next rows: `{"scores": {"coherence": [-1.5, null], "perplexity": [20.1, 9.5]}}`.

    Args:
        path: The file; an existing one is resumed.
        identity: JSON values that a resumed run must share, by name (`"input"`).

    Raises:
        ValueError: The file was started with another identity; names what differs.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._log = JsonLog(path, identity)
        self._scores: dict[str, list[float | None]] = {}
        for chunk in self._log.read():
            self._extend(chunk["scores"])

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    def append(self, scores: Mapping[str, Scores]) -> None:
        """Store one chunk's scores; they are on disk when this returns.

        Args:
            scores: Arrays of shape (rows in the chunk,) by name; NaN is stored as null.
        """
        lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
        self._log.append({"scores": lists})
        self._extend(lists)

    def column(self, name: str) -> Scores:
        """Return the values of one score, shape (rows scored,)."""
        return np.array(self._scores.get(name, []), dtype=np.float64)

    def _extend(self, scores: Mapping[str, Sequence[float | None]]) -> None:
        for name, values in scores.items():
            self._scores.setdefault(name, []).extend(values)


@contextmanager
def output_lock(output: Path) -> Iterator[None]:
    """Keep other processes from scoring into the same output file.

    Raises:
        ValueError: Another process holds the lock.
    """
    path = output.with_name(f".{output.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process is scoring into {output}: wait for it, or give another output"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # some systems can't delete an open file
            path.unlink()
        lock.release()


def score_in_chunks(
    components: Mapping[str, Component],
    samples: Samples,
    chunk: int,
    log: ScoreLog | None = None,
) -> dict[str, Scores]:
    """Score samples one unit of scorers at a time, and show the progress on standard error.

    The scorers of a unit share their models (`scoring_units`). A unit scores all rows and releases
    its models before the next one loads. Scorers that are not pointwise, such as `Distinct`, get
    all rows in one chunk.

    Args:
        components: The scores to compute, by the names of the result.
        samples: n samples.
        chunk: Rows to score before their scores are stored.
        log: Stores each chunk; rows that it already has are not scored again.

    Returns:
        Arrays of shape (n,) by name; NaN for samples that failed.

    Raises:
        ValueError: The log has more rows than there are samples.
    """
    parts = {name: [log.column(name)] if log else [] for name in components}
    done = {name: sum(map(len, columns)) for name, columns in parts.items()}
    if log and max(done.values(), default=0) > len(samples):
        raise ValueError(
            f"{log.path} has {max(done.values())} rows, but there are {len(samples)} samples: "
            "delete it to start over"
        )
    units = scoring_units(list(dict.fromkeys(c.scorer for c in components.values())))
    for number, unit in enumerate(units, 1):
        own = {name: c for name, c in components.items() if c.scorer in unit}
        size = chunk if unit[0].pointwise else len(samples)
        title = ", ".join(type(scorer).__name__ for scorer in unit)
        title += f" ({number} of {len(units)})" if len(units) > 1 else ""
        starts = {done[name] for name in own}
        with track(title, len(samples) * len(starts), done=sum(starts)) as advance:
            for scores in _remaining_chunks(own, samples, done, size):
                if log:
                    log.append(scores)
                for name, values in scores.items():
                    parts[name].append(values)
                advance(len(values))
        for scorer in unit:
            scorer.release()
        gc.collect()  # models are parts of reference cycles
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def _remaining_chunks(
    components: Mapping[str, Component], samples: Samples, done: Mapping[str, int], chunk: int
) -> Iterator[dict[str, Scores]]:
    """Yield the scores of the rows that are not done yet, chunk by chunk.

    A run that is resumed on other devices may have other units, whose scores are not equally far.
    """
    for start in sorted({done[name] for name in components}):
        behind = {name: c for name, c in components.items() if done[name] == start}
        for first in range(start, len(samples), chunk):
            yield score(behind, samples[first : first + chunk])
