"""Workers that are processes of this machine."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch

from ctrlreward.commands.shards.workers import (
    MOST_DEATHS,
    ScoredShard,
    Shard,
    died_too_often,
    pickled,
    portable_errors,
    release,
    score_shard,
)
from ctrlreward.progress import write_line
from ctrlreward.scorers.base import Component, Scores


class ProcessWorkers:
    """Child processes, each with models of its own.

    They end with this process, however it ends. One that dies is replaced, and its shard is scored
    again: a pool of `concurrent.futures` would give up all of its workers.

    Args:
        workers: Number of processes.
        threads: Threads of PyTorch in each; None shares the cores among them.
    """

    def __init__(self, workers: int, threads: int | None = None) -> None:
        self.workers = workers
        self.threads = threads or max(1, (os.cpu_count() or 1) // workers)
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()
        self._children = []

    def score(
        self, components: Mapping[str, Component], shards: Iterable[Shard]
    ) -> Iterator[ScoredShard]:
        """See `Workers.score`."""
        content = pickled(components, pickle.dumps)
        remaining = iter(shards)
        waiting = [shard for shard in [next(remaining, None)] if shard]  # one is read ahead
        for child in self._children:
            child.connection.send(content)
        deaths: Counter[int] = Counter()
        while waiting or any(child.shard for child in self._children):
            while waiting and (free := self._idle(content)):
                free.take(waiting.pop())
                if not waiting:
                    waiting += [shard for shard in [next(remaining, None)] if shard]
            busy = {child.connection: child for child in self._children if child.shard}
            for connection in wait(list(busy)):
                child = busy[connection]
                shard = child.shard
                assert shard is not None
                try:
                    yield shard.number, child.result()
                except EOFError:
                    self._children.remove(child)
                    child.end()
                    deaths[shard.number] += 1
                    if deaths[shard.number] == MOST_DEATHS:
                        raise died_too_often(shard) from None
                    write_line(f"a worker died ({child.ending}): {shard} are scored again")
                    waiting.append(shard)

    def _idle(self, content: bytes) -> _Child | None:
        """Return a child without work, a new one if there may be more; None if all are busy."""
        for child in self._children:
            if not child.shard:
                return child
        if len(self._children) == self.workers:
            return None
        child = _Child(self.threads)
        child.connection.send(content)
        self._children.append(child)
        return child


class _Child:
    """One process, its end of the pipe, and the shard that it scores."""

    def __init__(self, threads: int) -> None:
        context = _context()
        self.connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_work, args=(theirs, threads), name="ctrlreward-worker"
        )
        self.shard: Shard | None = None
        self._process.start()
        theirs.close()  # so that its death is an end of file

    def take(self, shard: Shard) -> None:
        """Start on a shard."""
        self.shard = shard
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died: so says its result
            self.connection.send(shard)

    def result(self) -> dict[str, Scores]:
        """Return the scores of its shard.

        Raises:
            EOFError: The process has died.
            Exception: As raised by a scorer.
        """
        try:
            result: dict[str, Scores] | Exception = self.connection.recv()
        except (ConnectionResetError, pickle.UnpicklingError):
            raise EOFError from None
        if isinstance(result, Exception):
            raise result
        self.shard = None
        return result

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()

    @property
    def ending(self) -> str:
        """Signal or exit status of the process."""
        code = self._process.exitcode
        return signal.Signals(-code).name if code and code < 0 else f"exit status {code}"


def _context() -> Any:
    """Return how processes are started.

    A fork of this process would copy locks that its threads hold. A process that has imported
    torch and nothing else forks in milliseconds instead, where the system can.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _work(connection: Connection[Any, Any], threads: int) -> None:
    """Score what comes through a pipe: pickled components, and then shards, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to decide
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    components: dict[str, Component] = {}
    failed: Exception | None = None
    while True:
        try:
            received: bytes | Shard = connection.recv()
        except EOFError:
            return
        if isinstance(received, bytes):
            release(components)
            try:
                with portable_errors():
                    components, failed = pickle.loads(received), None
            except Exception as error:
                failed = error
            continue
        result: dict[str, Scores] | Exception
        try:
            if failed:
                raise failed
            result = score_shard(components, received)
        except Exception as error:
            result = error
        connection.send(result)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
