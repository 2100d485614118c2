"""Workers that score shards: this process, or a pool of others, replaced when they die."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import torch

from ctrlreward.items import ItemFilter, ItemPlaces, items_named, names_item
from ctrlreward.progress import write_line
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score

# A shard whose worker died so often is considered the cause.
MOST_DEATHS = 3

# Warnings from one line of code that a process shows; a table may have thousands of failed rows.
_SHOWN = 3


class FirstWarnings(ItemFilter):
    """Names rows in warnings, and passes the first ones of each line of code."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Rename items; say at the last warning of a line of code that it is the last."""
        super().filter(record)
        if record.levelno != logging.WARNING:
            return True
        line = record.pathname, record.lineno
        self._counts[line] += 1
        if self._counts[line] == _SHOWN:
            record.msg, record.args = f"{record.getMessage()} (further ones are not shown)", ()
        return self._counts[line] <= _SHOWN

    @contextmanager
    def on_handlers(self) -> Iterator[None]:
        """Filter all warnings that are shown; their loggers may belong to a user's scorer."""
        handlers = [h for h in (*logging.root.handlers, logging.lastResort) if h is not None]
        for handler in handlers:
            handler.addFilter(self)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self)


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a table, each with its place (`"reviews.jsonl:417"`).

    `columns` maps columns of `Samples` to other names in the file. `invalid` has the column with
    invalid Unicode by row, whose texts are empty here.
    """

    number: int
    samples: Samples
    places: Sequence[str]
    columns: Mapping[str, str] = field(default_factory=dict)
    invalid: Mapping[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " to ".join(dict.fromkeys((self.places[0], self.places[-1])))


# Yields number and scores of each shard once, in any order. Shards are consumed lazily, so
# that few are in memory. The models of the components are loaded once, and freed after the last.
# Errors come from a scorer, and name the rows.
ScoreShards: TypeAlias = Callable[
    [Mapping[str, Component], Iterable[Shard]], Iterator[tuple[int, dict[str, Scores]]]
]


@contextmanager
def in_process(threads: int | None = None) -> Iterator[ScoreShards]:
    """Yield the function that scores shards in this process."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads or former)
    try:
        yield partial(_score_here, FirstWarnings())
    finally:
        torch.set_num_threads(former)


def _score_here(
    warnings: FirstWarnings, components: Mapping[str, Component], shards: Iterable[Shard]
) -> Iterator[tuple[int, dict[str, Scores]]]:
    try:
        for shard in shards:
            yield shard.number, score_shard(components, shard, warnings)
    finally:
        release(components)


class WorkerDied(Exception):
    """A worker has ended or can't be reached; says how."""


class WorkerPool(ABC):
    """Context manager of other processes, each with separate models, that score shards.

    This process reads, and sends a worker the next shard when it has finished one. A worker that
    dies is replaced and its shard is scored again, whereas a pool of `concurrent.futures` gives up
    all of its workers.

    A worker has `call(method, argument)`, which returns the result of a method of its
    `LoadedComponents` and is called in a thread, and `end()`.
    """

    def __init__(self, workers: int, threads: int) -> None:
        self.workers = workers
        self.threads = threads
        self.dumps: Callable[[object], bytes] = pickle.dumps
        self._alive: list[Any] = []

    def __enter__(self) -> ScoreShards:
        return self.score

    def __exit__(self, *_: object) -> None:
        for worker in self._alive:
            worker.end()
        self._alive = []

    @abstractmethod
    def start(self) -> Any:
        """Start a worker."""

    def score(
        self, components: Mapping[str, Component], shards: Iterable[Shard]
    ) -> Iterator[tuple[int, dict[str, Scores]]]:
        """See `ScoreShards`."""
        content = self._pickled(components)
        remaining = iter(shards)
        waiting = list(islice(remaining, 2))
        wanted = self.workers if len(waiting) > 1 else 1
        threads = ThreadPoolExecutor(self.workers)
        idle: list[Any] = []
        # Loading workers do not have a shard yet: on a full cluster others may score all of them
        # first.
        busy: dict[Future[Any], tuple[Any, Shard | None]] = {}
        deaths: Counter[int | None] = Counter()

        def load(worker: Any) -> None:
            busy[threads.submit(worker.call, "load", content)] = worker, None

        try:
            for worker in self._alive if waiting else ():
                load(worker)
            while waiting or any(shard for _, shard in busy.values()):
                while len(self._alive) < wanted:
                    self._alive.append(self.start())
                    load(self._alive[-1])
                while waiting and idle:
                    worker, shard = idle.pop(), waiting.pop(0)
                    busy[threads.submit(worker.call, "score", shard)] = worker, shard
                    if not waiting:
                        waiting += islice(remaining, 1)  # one is read ahead
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    worker, scored = busy.pop(future)
                    try:
                        result = future.result()
                    except WorkerDied as death:
                        self._alive.remove(worker)
                        worker.end()
                        number = scored.number if scored else None
                        deaths[number] += 1
                        if deaths[number] == MOST_DEATHS:
                            raise _died_too_often(scored, death) from None
                        again = f": {scored} are scored again" if scored else ""
                        write_line(f"a worker died ({death}){again}")
                        waiting += [scored] if scored else []
                    else:
                        idle.append(worker)
                        if scored:
                            yield scored.number, result
        finally:
            for future, (worker, _) in busy.items():  # after an error, or still loading
                if not future.done():
                    self._alive.remove(worker)
                    worker.end()
            threads.shutdown(wait=False)

    def _pickled(self, components: Mapping[str, Component]) -> bytes:
        try:
            return self.dumps(dict(components))
        except Exception as error:
            names = ", ".join(sorted({type(c.scorer).__name__ for c in components.values()}))
            raise ValueError(
                f"{names} can't be sent to other processes ({error}). Define the class in a "
                "module, keep open files and locks out of it, or score with --workers 1 --engine "
                "process."
            ) from error


def _died_too_often(shard: Shard | None, death: WorkerDied) -> RuntimeError:
    if shard is None:
        return RuntimeError(f"{MOST_DEATHS} workers died ({death})")
    return RuntimeError(
        f"{MOST_DEATHS} workers died while they scored {shard} ({death}): out of memory, or a text "
        "that ends the process; the last lines above say more. Use fewer workers, or a smaller "
        "--chunk to find the row"
    )


class LoadedComponents:
    """Components in a worker: `load` replaces them, `score` scores a shard with them."""

    def __init__(self, threads: int, device: str | None = None) -> None:
        torch.set_num_threads(threads)
        self.device = device
        self._components: dict[str, Component] = {}
        self._warnings = FirstWarnings()

    def load(self, content: bytes) -> None:
        """Replace the components by pickled ones."""
        release(self._components)
        with _portable_errors():
            self._components = pickle.loads(content)
        if self.device:
            for scorer in {component.scorer for component in self._components.values()}:
                scorer.to(self.device)

    def score(self, shard: Shard) -> dict[str, Scores]:
        """Return the scores of a shard."""
        with _portable_errors():
            return score_shard(self._components, shard, self._warnings)


class ProcessWorkers(WorkerPool):
    """Child processes, which end with this process in any case."""

    def __init__(self, workers: int, threads: int | None = None) -> None:
        super().__init__(workers, threads or max(1, (os.cpu_count() or 1) // workers))

    def start(self) -> _Child:
        """Start a process."""
        return _Child(self.threads)


class _Child:
    """Worker process and our end of its pipe."""

    def __init__(self, threads: int) -> None:
        # A fork of this process would copy locks held by its threads. A process that has imported
        # only torch forks in milliseconds instead, if the system supports it.
        context: Any = get_context("spawn")
        if "forkserver" in get_all_start_methods():
            context = get_context("forkserver")
            context.set_forkserver_preload([__name__])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, threads), name="ctrlreward-worker"
        )
        self._process.start()
        theirs.close()  # so that its death is seen as end of file

    def end(self) -> None:
        """End the process. The pipe is closed when no thread reads it any more."""
        self._process.kill()
        self._process.join()

    def call(self, method: str, argument: object) -> Any:
        """Return the result of a method, or raise its error or `WorkerDied`."""
        try:
            self._connection.send((method, argument))
            result = self._connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            self._process.join()
            code = self._process.exitcode
            raise WorkerDied(
                signal.Signals(-code).name if code and code < 0 else f"exit status {code}"
            ) from None
        if isinstance(result, Exception):
            raise result
        return result


def _work(connection: Connection[Any, Any], threads: int) -> None:
    """Call the methods that come through a pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to decide
    threading.Thread(target=_end_with_parent, daemon=True).start()
    loaded = LoadedComponents(threads)
    while True:
        try:
            method, argument = connection.recv()
        except EOFError:
            return
        try:
            result = getattr(loaded, method)(argument)
        except Exception as error:
            result = error
        connection.send(result)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def score_shard(
    components: Mapping[str, Component], shard: Shard, warnings: FirstWarnings
) -> dict[str, Scores]:
    """Return the scores of a shard's rows, NaN for failed ones; errors and warnings name rows."""
    with warnings.on_handlers(), items_named(ItemPlaces(shard.places, shard.columns)):
        try:
            scores = score(components, shard.samples)
        except Exception as error:
            if not names_item(str(error)):
                error.add_note(f"(while scoring {shard})")
            raise
    for values in scores.values() if shard.invalid else ():
        values[list(shard.invalid)] = np.nan
    return scores


def release(components: Mapping[str, Component]) -> None:
    """Free the models of components."""
    for scorer in {component.scorer for component in components.values()}:
        scorer.release()
    gc.collect()  # models are parts of reference cycles


@contextmanager
def _portable_errors() -> Iterator[None]:
    """Raise an error that can't be read in another process as a RuntimeError with its text."""
    try:
        yield
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
