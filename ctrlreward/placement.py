"""Placement of scorers during training: devices, and the background thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")


def shared_device(
    scorers: Mapping[str, Sequence[str]], kind: str, ids: Sequence[int], ranks: int
) -> str | None:
    """Return an error message if a scorer shares one of several training devices, else None.

    Sharing a single training device is allowed: it costs memory and time. Among several devices,
    the shared one would run out of memory and stall all others. The CPU is always shared.

    `scorers` maps a name to the devices of its models; `"cuda"` without an index is the first one
    of training. Training has the devices `ids` of a `kind` (`"cuda"`, `"cpu"`, `"mps"`) on this
    machine, and `ranks` processes on all machines.
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


class Worker:
    """One background thread that runs calls in order, without gradients, from the first call on."""

    def __init__(self, name: str = "ctrlreward") -> None:
        self.name = name
        self._yields_cpu = False
        self._executor: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the settings without the thread: a copy starts its own."""
        return {**self.__dict__, "_executor": None}

    def yield_cpu(self) -> None:
        """Run on one core at the lowest priority from the next start of the thread.

        Two threads that both spread their work over all cores wait for each other at every small
        product: on two cores, a step of the demo with its reward on such a thread took 30 s, and
        20 s with both in sequence.
        """
        self._yields_cpu = True

    def submit(self, call: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Queue a call; the future holds its result or exception."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                max_workers=1,
                thread_name_prefix=self.name,
                initializer=_lower_priority if self._yields_cpu else None,
            )
        # Gradients are a per-thread setting.
        return self._executor.submit(torch.no_grad()(call), *arguments)

    def close(self, cancel: bool = False) -> None:
        """Wait for the running call and end the thread."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=cancel)
            self._executor = None


def _lower_priority() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # New threads inherit the last value that any thread has set: set it back from another one.
    restoring = threading.Thread(target=torch.set_num_threads, args=(threads,))
    restoring.start()
    restoring.join()
    if sys.platform == "linux":  # elsewhere, threads do not have separate priorities
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


@contextmanager
def reserve_core() -> Iterator[None]:
    """Leave one of several cores to a `Worker`, for work that gains little from more cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
