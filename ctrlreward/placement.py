"""Placement of scorers during training: devices, and the background thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
                    f"the device of {name} must be none of training, {', '.join(taken)}, such as "
                    f"'cpu' or {f'{kind}:{max(ids) + 1}'!r}, got {device!r}"
                )
    return None


class Worker:
    """One background thread that runs calls in order, without gradients, from the first call on."""

    def __init__(self, name: str = "ctrlreward") -> None:
        self.name = name
        self._thread: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Callable[..., Worker], tuple[str]]:
        """Leave the thread out of a copy, which starts its own."""
        return Worker, (self.name,)

    def submit(self, call: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Queue a call; the future holds its result or exception."""
        import torch

        from ctrlreward.models.accelerators import on_this_device

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self.name)
        # Gradients and the current device are per-thread settings.
        return self._thread.submit(on_this_device(torch.no_grad()(call)), *arguments)

    def close(self, cancel: bool = False) -> None:
        """Wait for the running call and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=cancel)
            self._thread = None
