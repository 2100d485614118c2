"""The background thread of a reward."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


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
