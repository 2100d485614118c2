"""Workers that score shards: the interface that all engines have, and the one in this process."""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import numpy as np
import torch

from ctrlreward.items import ItemFilter, ItemPlaces, items_named, names_item
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, scatter, score

ScoredShard: TypeAlias = tuple[int, dict[str, Scores]]

# A shard whose worker has died so often is taken for the cause.
MOST_DEATHS = 3

_ITEM_FILTER = ItemFilter()


@dataclass(frozen=True)
class Shard:
    """One piece of work.

    Attributes:
        number: Its number in the manifest.
        samples: Samples of its rows, without rows that can't be scored.
        rows: Index of each sample among the rows.
        places: Where each row is, for errors and warnings (`"reviews.jsonl:417"`).
        columns: Column of `Samples` → its name in the file, if it has another one.
    """

    number: int
    samples: Samples
    rows: Sequence[int]
    places: Sequence[str]
    columns: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.places[0]} to {self.places[-1]}"


class Workers(Protocol):
    """Context manager that scores shards, one after the other or several at a time."""

    def score(
        self, components: Mapping[str, Component], shards: Iterable[Shard]
    ) -> Iterator[ScoredShard]:
        """Yield number and scores of each shard once, in any order.

        Shards are taken as they are needed, so that few are in memory. A worker loads the models
        of the components once, for all of its shards, and frees them after the last.

        Args:
            components: The scores to compute, by the names of the result.
            shards: The work.

        Raises:
            RuntimeError: The workers of one shard have died `MOST_DEATHS` times; names its rows.
            Exception: As a scorer raised it, with a note that names the rows.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class InProcess:
    """The only worker is this process.

    Args:
        threads: Threads of PyTorch; None leaves their number as it is.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def __enter__(self) -> Self:
        self._former = torch.get_num_threads()
        if self.threads:
            torch.set_num_threads(self.threads)
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._former)

    def score(
        self, components: Mapping[str, Component], shards: Iterable[Shard]
    ) -> Iterator[ScoredShard]:
        """See `Workers.score`."""
        try:
            for shard in shards:
                yield shard.number, score_shard(components, shard)
        finally:
            release(components)


def score_shard(components: Mapping[str, Component], shard: Shard) -> dict[str, Scores]:
    """Return the scores of a shard's rows, NaN for those that are not among its samples.

    Errors and warnings name the rows by their places; an error can go to another process.
    """
    for handler in filter(None, (*logging.root.handlers, logging.lastResort)):
        handler.addFilter(_ITEM_FILTER)  # once; the loggers may be those of a user's scorer
    size = len(shard.places)
    if not shard.rows:
        return {name: np.full(size, np.nan) for name in components}
    places = [shard.places[row] for row in shard.rows]
    with items_named(ItemPlaces(places, shard.columns)), portable_errors():
        try:
            scores = score(components, shard.samples)
        except Exception as error:
            if not names_item(str(error)):
                error.add_note(f"(while {shard} were scored)")
            raise
    if len(shard.rows) == size:
        return scores
    return {name: scatter(values, shard.rows, size) for name, values in scores.items()}


@contextmanager
def portable_errors() -> Iterator[None]:
    """Raise an error that can't be read in another process as a RuntimeError with its text.

    Its reader would take it for an error of the connection, like the death of a worker.
    """
    try:
        yield
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def pickled(components: Mapping[str, Component], dumps: Callable[[object], bytes]) -> bytes:
    """Return components as bytes for another process.

    Raises:
        ValueError: A scorer can't be pickled; names it.
    """
    try:
        return dumps(dict(components))
    except Exception as error:
        names = ", ".join(sorted({type(c.scorer).__name__ for c in components.values()}))
        raise ValueError(
            f"{names} can't be sent to other processes ({error}): define the class in a module, "
            "keep open files and locks out of it, or score with --workers 1 --engine process"
        ) from error


def died_too_often(shard: Shard) -> RuntimeError:
    """Return the error for a shard whose workers die."""
    return RuntimeError(
        f"{MOST_DEATHS} workers died while they scored {shard}: out of memory, or a text that ends "
        "the process; the last lines above say more. Use fewer workers, or a smaller --chunk to "
        "find the row"
    )


def release(components: Mapping[str, Component]) -> None:
    """Free the models of components."""
    for scorer in {component.scorer for component in components.values()}:
        scorer.release()
    gc.collect()  # models are parts of reference cycles
