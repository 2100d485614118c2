"""Accelerators: free memory and streams, by torch's module of the device's type."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of an accelerator; None for the CPU, and if torch does not know."""
    read = getattr(_module(device), "mem_get_info", None)
    return None if read is None else int(read(device)[0])


def free_unused() -> None:
    """Free tensors in cycles of objects, and return torch's cached memory to the device."""
    gc.collect()
    device = torch.accelerator.current_accelerator(check_available=True)
    empty_cache = getattr(_module(device or torch.device("cpu")), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()


@contextmanager
def scoring_stream(device: str | None) -> Iterator[None]:
    """Let work on an accelerator not wait for training's; a context and a decorator.

    One stream per device, for which torch keeps the memory that was freed in it.
    """
    place = torch.device(device or "cpu")
    module = getattr(torch, place.type)  # torch.cpu too
    if place.type == "cpu" or not hasattr(module, "stream"):
        yield
        return
    index = module.current_device() if place.index is None else place.index
    with module.stream(_stream(place.type, index)):
        yield


def on_this_device(call: Callable[..., Result]) -> Callable[..., Result]:
    """Return the call for another thread, with this thread's current device as `"cuda"` there.

    A thread starts at the first device, and training may use another one.
    """
    device = torch.accelerator.current_accelerator()
    module = getattr(torch, "cpu" if device is None else device.type)
    if device is None or not module.is_initialized():
        return call
    index = module.current_device()

    def placed(*arguments: object) -> Result:
        module.set_device(index)
        return call(*arguments)

    return placed


@cache
def _stream(kind: str, index: int) -> object:
    place = torch.device(kind, index)
    return _module(place).Stream(place)


def _module(device: torch.device) -> Any:
    """Return `torch.cuda`, `torch.xpu`, …; None for the CPU."""
    return None if device.type == "cpu" else getattr(torch, device.type, None)
