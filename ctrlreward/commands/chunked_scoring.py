"""Scores chunk by chunk: what is computed lies on disk before the next chunk is begun."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ctrlreward.engine.batching import shows_progress
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scorer, Scores, ScoreSpec, score


class ScoreLog:
    """The scores of a run that may be cut off, as a file to which every chunk is appended.

    The first line says what the run scores; each other line holds the scores of one scorer for
    the rows that follow those it has. A line that was cut off is dropped when the file is opened.

    Args:
        path: The file; where there is one, the run goes on from it.
        identity: What must be the same for that: JSON values by name (`"input"`).

    Raises:
        ValueError: The file is of another run; names what differs.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.scores: dict[int, dict[str, list[float | None]]] = {}
        begun, *chunks = self._whole_lines() or [None]
        if begun is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(identity)
        else:
            self._require(begun, json.loads(json.dumps(identity)))
        for chunk in chunks:
            self._take(chunk["scorer"], chunk["scores"])

    def rows(self, scorer: int) -> int:
        """How many rows the scorer of that number has done."""
        return max((len(values) for values in self.scores.get(scorer, {}).values()), default=0)

    def append(self, scorer: int, scores: Mapping[str, Scores]) -> None:
        """Stores a chunk's scores; they are on the disk when this returns."""
        lists = {name: [None if np.isnan(v) else float(v) for v in s] for name, s in scores.items()}
        self._append({"scorer": scorer, "scores": lists})
        self._take(scorer, lists)

    def columns(self, scorer: int) -> dict[str, Scores]:
        """All scores of the scorer of that number, arrays of shape (rows done,)."""
        return {n: np.array(v, dtype=np.float64) for n, v in self.scores.get(scorer, {}).items()}

    def _take(self, scorer: int, scores: Mapping[str, Sequence[float | None]]) -> None:
        columns = self.scores.setdefault(scorer, {name: [] for name in scores})
        for name, values in scores.items():
            columns[name].extend(values)

    def _append(self, record: Mapping[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _whole_lines(self) -> list[Any]:
        """What was written to the end; the file is cut back to it."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(self.path, end)
        return [json.loads(line) for line in content[:end].splitlines()]

    def _require(self, begun: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        other = [name for name in identity if begun.get(name) != identity[name]]
        if other:
            was, now = (
                json.dumps([side.get(n) for n in other])[:300] for side in (begun, identity)
            )
            raise ValueError(
                f"{self.path} was begun with another {' and '.join(other)}: {was}, not {now}. "
                "Go on with what it was begun with, or delete it to start anew"
            )


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Keeps other processes from scoring into the same file meanwhile.

    Raises:
        ValueError: Another one is at it.
    """
    path = output.with_name(f".{output.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process is scoring into {output}: wait for it, or name another output"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # where a file that is open can't be deleted
            path.unlink()
        lock.release()


def score_in_chunks(
    components: Mapping[str, Component],
    samples: Samples,
    chunk: int,
    log: ScoreLog | None = None,
) -> dict[str, Scores]:
    """The named scores of n samples, arrays of shape (n,), with a bar at a terminal.

    One scorer after the other does all its rows and frees its model. One whose scores depend on
    several samples at once is given all of them at once.

    Args:
        components: What to score, by the names of the result.
        samples: What is scored.
        chunk: Rows that are scored, and stored, at a time.
        log: Where chunks are stored, and taken from instead of being scored again.

    Raises:
        ValueError: The log has more rows than there are samples.
    """
    by_scorer: dict[Scorer, dict[str, Component]] = {}
    for name, component in components.items():
        by_scorer.setdefault(component.scorer, {})[name] = component
    scores: dict[str, Scores] = {}
    with _progress(len(samples) * len(by_scorer)) as show:
        for place, (scorer, own) in enumerate(by_scorer.items()):
            done = log.rows(place) if log else 0
            if log and done > len(samples):
                raise ValueError(
                    f"{log.path} has {done} rows of {len(samples)}: delete it to start anew"
                )
            parts = [log.columns(place)] if log and done else []
            size = chunk if scorer.pointwise else len(samples)
            show(type(scorer).__name__, done)
            for start in range(done, len(samples), size):
                rows = samples[start : start + size]
                parts.append(score(own, rows))
                if log:
                    log.append(place, parts[-1])
                show(type(scorer).__name__, len(rows))
            scorer.release()
            scores |= {name: np.concatenate([part[name] for part in parts]) for name in own}
    return {name: scores[name] for name in components}


def summary(scores: Mapping[str, Scores], specs: Mapping[str, ScoreSpec]) -> Table:
    """Each score's direction, mean and number of failed rows, as a table."""
    table = Table(title="Means (↑ higher is better, ↓ lower is better)")
    table.add_column("score")
    for heading in ("mean", "rows", "failed"):
        table.add_column(heading, justify="right")
    for name, values in scores.items():
        scored = values[~np.isnan(values)]
        mean = f"{scored.mean():.4f}" if len(scored) else "–"
        failed = len(values) - len(scored)
        table.add_row(f"{name} {arrow(specs[name])}", mean, str(len(values)), str(failed))
    return table


def arrow(spec: ScoreSpec) -> str:
    """A score's direction."""
    return "↑" if spec.higher_is_better else "↓"


@contextmanager
def _progress(rows: int) -> Iterator[Callable[[str, int], None]]:
    """A bar on standard error at a terminal; silent elsewhere and in CI."""
    if not shows_progress():
        yield lambda scorer, done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    # While this bar is up, standard error is no terminal to others: models show none of theirs.
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=rows)

        def show(scorer: str, done: int) -> None:
            bar.update(task, description=scorer, advance=done)

        yield show
