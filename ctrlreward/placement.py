"""Where scorers may run beside training, and how they leave it the CPU."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch


def shared_device(
    scorers: Mapping[str, Sequence[str]], kind: str, ids: Sequence[int], ranks: int
) -> str | None:
    """What is wrong where a scorer runs on one of several devices of training; None if nothing.

    On a single device a scorer may run beside training, at the price of its memory and time. With
    several, the one that it runs on would be short of memory and keep all others waiting. On the
    CPU there is nothing to keep apart.

    Args:
        scorers: Name → the devices of its models, as torch names them. `"cuda"` without a number
            is the device of the process, the first of training's.
        kind: Of training's devices: `"cuda"`, `"cpu"`, `"mps"`.
        ids: Their numbers, on this machine.
        ranks: Processes of training, on all machines.
    """
    if kind == "cpu" or max(len(ids), ranks) == 1:
        return None
    taken = [f"{kind}:{i}" for i in ids]
    for name, devices in scorers.items():
        for device in devices:
            if device == kind or device in taken:
                return (
                    f"{name} runs on {device!r}, where training runs, too: its devices are "
                    f"{', '.join(taken)}. Give the scorer device='cpu' or a device outside of "
                    f"them, such as {f'{kind}:{max(ids) + 1}'!r}, or train on fewer"
                )
    return None


def step_aside() -> None:
    """Has this thread compute on one core, and only while training leaves it one.

    Two threads that each spread their work over all cores wait for each other at every small
    product: on two cores a step of the demo with its reward on such a thread took 30 s, and 20 s
    with both one after the other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # torch gives a new thread the number that was set last, in whichever thread.
    restoring = threading.Thread(target=torch.set_num_threads, args=(threads,))
    restoring.start()
    restoring.join()
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


@contextmanager
def one_core_left() -> Iterator[None]:
    """Leaves one core to threads that have stepped aside, where there is more than one.

    For work that many cores hardly speed up, such as sampling token by token.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
