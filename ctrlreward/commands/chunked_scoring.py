"""Resumable scoring in chunks: each chunk's scores are on disk before the next chunk starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ctrlreward.engine.batching import shows_progress
from ctrlreward.files import JsonLog
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scorer, Scores, score


class ScoreLog:
    """Scores of an unfinished run, appended to a file chunk by chunk.

    The first line holds the run's identity. Every other line holds one scorer's scores for the
    next rows: `{"scorer": 0, "scores": {"coherence": [-1.5, null]}}`.

    Args:
        path: The file; an existing one is resumed.
        identity: JSON values that a resumed run must share, by name (`"input"`).

    Raises:
        ValueError: The file was started with another identity; names what differs.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._log = JsonLog(path, identity)
        self._scores: dict[int, dict[str, list[float | None]]] = {}
        for chunk in self._log.read():
            self._extend(chunk["scorer"], chunk["scores"])

    @property
    def path(self) -> Path:
        """The file."""
        return self._log.path

    def rows(self, scorer: int) -> int:
        """Return the number of rows that a scorer has scored.

        Args:
            scorer: Its position among the run's scorers, from 0.
        """
        return max((len(values) for values in self._scores.get(scorer, {}).values()), default=0)

    def append(self, scorer: int, scores: Mapping[str, Scores]) -> None:
        """Store one chunk's scores; they are on disk when this returns.

        Args:
            scorer: Its position among the run's scorers, from 0.
            scores: Arrays of shape (rows in the chunk,) by name; NaN is stored as null.
        """
        lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
        self._log.append({"scorer": scorer, "scores": lists})
        self._extend(scorer, lists)

    def columns(self, scorer: int) -> dict[str, Scores]:
        """Return a scorer's scores by name, arrays of shape (rows scored,)."""
        return {n: np.array(v, dtype=np.float64) for n, v in self._scores.get(scorer, {}).items()}

    def _extend(self, scorer: int, scores: Mapping[str, Sequence[float | None]]) -> None:
        columns = self._scores.setdefault(scorer, {name: [] for name in scores})
        for name, values in scores.items():
            columns[name].extend(values)


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
    """Score samples one scorer at a time, with a progress bar at a terminal.

    A scorer scores all rows and releases its model before the next one loads. A scorer that is not
    pointwise, such as `Distinct`, gets all rows in one chunk.

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
    by_scorer: dict[Scorer, dict[str, Component]] = {}
    for name, component in components.items():
        by_scorer.setdefault(component.scorer, {})[name] = component
    scores: dict[str, Scores] = {}
    with _progress_bar(len(samples) * len(by_scorer)) as advance:
        for position, (scorer, own_components) in enumerate(by_scorer.items()):
            done = log.rows(position) if log else 0
            if log and done > len(samples):
                raise ValueError(
                    f"{log.path} has {done} rows, but there are {len(samples)} samples: delete it "
                    "to start over"
                )
            parts = [log.columns(position)] if log and done else []
            size = chunk if scorer.pointwise else len(samples)
            advance(type(scorer).__name__, done)
            for start in range(done, len(samples), size):
                rows = samples[start : start + size]
                parts.append(score(own_components, rows))
                if log:
                    log.append(position, parts[-1])
                advance(type(scorer).__name__, len(rows))
            scorer.release()
            scores |= {
                name: np.concatenate([part[name] for part in parts]) for name in own_components
            }
    return {name: scores[name] for name in components}


@contextmanager
def _progress_bar(rows: int) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that names the current scorer and adds finished rows to the bar.

    The bar is on standard error, and only at a terminal outside CI.
    """
    if not shows_progress():
        yield lambda scorer, done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    # rich redirects standard error while the bar is live, so models show no bars of their own.
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=rows)

        def advance(scorer: str, done: int) -> None:
            bar.update(task, description=scorer, advance=done)

        yield advance
