"""The floating-point type that a model runs in."""

from __future__ import annotations

import time
from functools import cache

import torch

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def pick_dtype(dtype: str | None, device: str) -> torch.dtype:
    """The floating-point type to load a model in.

    Args:
        dtype: `"float16"`, `"bfloat16"`, `"float32"`, `"float64"`; None picks float32, on CUDA
            bfloat16 (float16 where the device has none). `"fastest"` is None on CUDA, and on the
            CPU bfloat16 where this machine multiplies it faster than float32: some processors do
            so twice as fast, others emulate it at a seventh of the speed.
        device: What the model will run on, as torch names it (`"cpu"`, `"cuda:1"`).

    Raises:
        ValueError: The name is unknown (lists the known ones), or there is no CUDA device.
    """
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device = {device!r} and torch {torch.__version__} finds no CUDA device: "
            "give device='cpu', or install a torch build with CUDA"
        )
    if dtype == "fastest":
        if kind == "cpu" and _seconds(torch.bfloat16) < _seconds(torch.float32):
            return torch.bfloat16
        dtype = None
    if dtype is None and kind == "cuda":
        # Older ones emulate bfloat16, slower than float32.
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if native else torch.float16
    if dtype is None:
        return torch.float32
    if dtype not in _DTYPES:
        raise ValueError(f"dtype = {dtype!r}: give one of {', '.join(_DTYPES)}, fastest or None")
    return _DTYPES[dtype]


@cache
def _seconds(dtype: torch.dtype) -> float:
    """Time of a matrix product on the CPU, of the size of a small model's layer; the best of 5."""
    rows, matrix = torch.ones(256, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        torch.nn.functional.linear(rows, matrix)
        times.append(time.perf_counter() - start)
    return min(times)
