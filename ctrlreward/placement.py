"""Placement of scorers during training: devices, the background thread, and time limits."""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, TypeVar

import torch

from ctrlreward.engine import batching
from ctrlreward.engine.accelerators import on_this_device

log = logging.getLogger(__name__)

Result = TypeVar("Result")


def shared_device(
    scorers: Mapping[str, Sequence[str]], kind: str, ids: Sequence[int], ranks: int
) -> str | None:
    """Return an error message if a scorer shares one of several training devices, else None.

    A shared one would stall the others. `scorers` maps a name to the devices of its models, of
    which `"cuda"` is the first one of training. Training has the devices `ids` of a `kind`
    (`"cuda"`, `"cpu"`, `"mps"`) on this machine, and `ranks` processes on all machines.
    """
    if kind == "cpu" or max(len(ids), ranks) == 1:
        return None
    taken = [f"{kind}:{i}" for i in ids]
    for name, devices in scorers.items():
        for device in devices:
            if device == kind or device in taken:
                return (
                    f"{name} runs on {device!r}, which is also a training device (of "
                    f"{', '.join(taken)}). Set device='cpu' for the scorer, or another device, "
                    f"such as {f'{kind}:{max(ids) + 1}'!r}, or train on fewer devices."
                )
    return None


def overlap_on_cpu(devices: Iterable[str], kind: str) -> str | None:
    """Return a warning if scorers and training overlap on the same CPU, else None."""
    if kind != "cpu" or "cpu" not in devices:
        return None
    return (
        "the scorers are on the CPU that trains, where overlap saves no time (a step of the demo "
        "took 8.3 s, and 8.2 s without). Set overlap=False, or device= for the scorers."
    )


# Running threads and their calls. At the end of the process the calls that wait are cancelled, and
# the one that runs has a few seconds: a thread that ends within PyTorch would abort the process.
_SECONDS_AT_EXIT = 10.0
_threads: dict[threading.Thread, SimpleQueue[Any]] = {}
os.register_at_fork(after_in_child=_threads.clear)


@atexit.register
def _end_threads() -> None:
    for thread, calls in [*_threads.items()]:
        _cancel(calls)
        calls.put(None)
        thread.join(_SECONDS_AT_EXIT)


def _cancel(calls: SimpleQueue[Any]) -> None:
    with suppress(Empty):
        while (item := calls.get_nowait()) is not None:
            item[0].cancel()


class Worker:
    """One background thread that runs calls in order, without gradients, from the first call on.

    The thread is a daemon: one that hangs does not keep the process from ending.
    """

    def __init__(self, name: str = "ctrlreward") -> None:
        self.name = name
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def __reduce__(self) -> tuple[Callable[..., Worker], tuple[str]]:
        """Leave the thread out of a copy, which starts its own."""
        return Worker, (self.name,)

    def submit(self, call: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Queue a call; the future holds its result or exception."""
        if self._thread is None:
            self._queue = SimpleQueue()
            self._thread = threading.Thread(
                target=_run_calls, args=(self._queue,), name=self.name, daemon=True
            )
            _threads[self._thread] = self._queue
            self._thread.start()
        future: Future[Result] = Future()
        # Gradients and the current device are per-thread settings.
        placed = on_this_device(torch.no_grad()(call))
        self._queue.put((future, partial(placed, *arguments)))
        return future

    def close(self, cancel: bool = False) -> None:
        """Wait for the running call and end the thread."""
        if self._thread is not None:
            if cancel:
                _cancel(self._queue)
            self._queue.put(None)
            self._thread.join()
            _threads.pop(self._thread, None)
            self._thread = None

    def abandon(self) -> str:
        """Abandon a call that hangs; return its line, such as "judge.py:31 in ask"."""
        assert self._thread is not None
        where = _place(self._thread.ident)
        self._queue.put(None)  # it ends if the call ever does
        _threads.pop(self._thread, None)
        self._thread = None  # a later call starts another one
        return where


def _run_calls(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        future, call = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del item, future, call  # otherwise their objects live until the next call


class ScoringTimeout(TimeoutError):
    """Scoring that exceeded its time limit."""


class TimeLimit:
    """Runs scoring for at most `seconds`, on a separate thread; None runs it without a limit.

    A call that does not end is left to its thread, since Python can't end a thread from outside.
    """

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"timeout must be a positive number of seconds or None, got {seconds}")
        self.seconds = seconds
        self._worker = Worker("ctrlreward-limited")

    def run(self, what: Callable[[], str], call: Callable[[], Result]) -> Result:
        """Return the result of a call.

        Raises:
            ScoringTimeout: It takes longer. The message has the result of `what`, such as "4 texts
                by Judge (score)", and the current line.
        """
        thread = threading.get_ident()
        outer = _running.get(thread)
        _running[thread] = what
        try:
            if self.seconds is None:
                return call()
            future = self._worker.submit(copy_context().run, call)
            try:
                return future.result(self.seconds)
            except TimeoutError:
                if future.done():  # the scorer's own
                    raise
            where = self._worker.abandon()
            raise ScoringTimeout(
                f"scoring {what()} did not end within timeout = {self.seconds:g} s, it is at "
                f"{where}. Fix or remove the scorer that waits there, or set a longer timeout."
            )
        finally:
            if outer is None:
                del _running[thread]
            else:
                _running[thread] = outer

    def close(self) -> None:
        """End the thread."""
        self._worker.close()


# Descriptions of the scoring in progress, by the id of the thread that started it.
_running: dict[int, Callable[[], str]] = {}

_LIBRARY = os.path.dirname(threading.__file__)


def _place(thread: int | None) -> str:
    """Return the line that a thread is at, outside of Python's library."""
    frame = sys._current_frames().get(thread or 0)
    lines = traceback.extract_stack(frame) if frame else []
    own = [line for line in lines if not line.filename.startswith(_LIBRARY)]
    return "; ".join(f"{line.filename}:{line.lineno} in {line.name}" for line in own[-1:])


# Seconds without progress after which scoring counts as hanging, once the process should end.
# Schedulers kill it 30 s after SIGTERM by default.
GRACE = 10.0


def end_if_scoring_hangs() -> None:
    """End the process after a SIGTERM if scoring then makes no progress for `GRACE` seconds.

    Lightning's handler only sets a flag, which it reads after the batch. Call this while a run is
    under way: at its end, Lightning restores the previous handler.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if (
        threading.current_thread() is not threading.main_thread()
        or not callable(previous)  # without a handler, SIGTERM ends the process at once
        or getattr(previous, "watches_scoring", False)
    ):
        return

    def handle(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=_watch, name="sigterm", daemon=True).start()
        previous(number, frame)

    handle.watches_scoring = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, handle)


def _watch() -> None:
    """End the process if scoring hangs now, or in the minute in which the run should end."""
    started = since = time.monotonic()
    seen: object = None
    while _running or time.monotonic() - started < 60:
        now = (batching.passes, tuple(_running.items()))
        if not _running or now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since >= GRACE:
            for thread, what in _running.items():
                log.error(
                    "SIGTERM: scoring %s has made no progress for %.0f s, at %s, so the process "
                    "ends",
                    *(what(), GRACE, _place(thread)),
                )
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + signal.SIGTERM)
        time.sleep(0.1)
