"""Workers that score shards: the face that all engines have, and the one in this process."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import torch

from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score

ScoredShard: TypeAlias = tuple[int, dict[str, Scores]]

# A shard whose worker has died so often is taken for the cause.
MOST_DEATHS = 3


@dataclass(frozen=True)
class Shard:
    """One piece of work.

    Attributes:
        number: Its number in the manifest.
        rows: Its rows in the corpus, for errors.
        samples: Its samples.
    """

    number: int
    rows: range
    samples: Samples

    def __str__(self) -> str:
        return f"rows {self.rows.start:,} to {self.rows.stop - 1:,}"


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
    """Return the scores of a shard; an error names its rows, and can go to another process."""
    try:
        with portable_errors():
            return score(components, shard.samples)
    except Exception as error:
        if shard.rows.start:
            error.add_note(f"({shard} of the input, where these indices start at 0)")
        raise


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
        f"{MOST_DEATHS} workers died while they scored {shard} of the input: out of memory, or a "
        "text that ends the process; the last lines above say more. Use fewer workers, or a "
        "smaller --chunk to find the row"
    )


def release(components: Mapping[str, Component]) -> None:
    """Free the models of components."""
    for scorer in {component.scorer for component in components.values()}:
        scorer.release()
    gc.collect()  # models are parts of reference cycles
