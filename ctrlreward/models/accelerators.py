"""Accelerators: the one to score on, free memory and streams, by torch's module of the type."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

from ctrlreward.ranks import rank_and_ranks

Result = TypeVar("Result")


def scoring_device(device: str | None) -> str:
    """Return the device of a scorer's model: as given, or for None the one that training leaves.

    That is the last visible accelerator that no rank of this machine trains on (ranks train on the
    first ones), the only accelerator, or the CPU.
    """
    if device is not None:
        return device
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    count = torch.accelerator.device_count()
    if count == 1:
        return accelerator.type
    _, ranks = rank_and_ranks()
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    training = range(local_ranks) if ranks > 1 else [torch.accelerator.current_device_index()]
    free = [index for index in range(count) if index not in training]
    return f"{accelerator.type}:{free[-1]}" if free else "cpu"


def require_device(device: str) -> torch.device:
    """Return a device of this machine; a ValueError for another one."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:  # of a torch with no such devices, the second
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be one of this machine, got {device!r}: {reason}") from error
    return place


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
    place = require_device(device or "cpu")
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
