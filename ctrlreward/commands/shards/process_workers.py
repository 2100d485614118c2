"""Workers that are processes of this machine."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

from ctrlreward.commands.shards.workers import LoadedComponents, Shard, WorkerDied, WorkerPool
from ctrlreward.scorers.base import Scores


class ProcessWorkers(WorkerPool):
    """Child processes, which end with this process, however it ends.

    Args:
        workers: Number of processes.
        threads: Threads of PyTorch in each; None shares the cores among them.
    """

    def __init__(self, workers: int, threads: int | None = None) -> None:
        super().__init__(workers, threads or max(1, (os.cpu_count() or 1) // workers))

    def start(self) -> _Child:
        """Start a process."""
        return _Child(self.threads)


class _Child:
    """One process, and this end of its pipe."""

    def __init__(self, threads: int) -> None:
        # A fork of this process would copy locks that its threads hold. A process that has imported
        # torch and nothing else forks in milliseconds instead, where the system can.
        context: Any = get_context("spawn")
        if "forkserver" in get_all_start_methods():
            context = get_context("forkserver")
            context.set_forkserver_preload([__name__])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, threads), name="ctrlreward-worker"
        )
        self._process.start()
        theirs.close()  # so that its death is an end of file

    def load(self, content: bytes) -> None:
        """See `Worker.load`."""
        self._call("load", content)

    def score(self, shard: Shard) -> dict[str, Scores]:
        """See `Worker.score`."""
        scores: dict[str, Scores] = self._call("score", shard)
        return scores

    def end(self) -> None:
        """End the process. The pipe is closed when no thread reads it any more."""
        self._process.kill()
        self._process.join()

    def _call(self, method: str, argument: object) -> Any:
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
