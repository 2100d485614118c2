"""Floating-point types of models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch

from ctrlreward.arguments import one_of

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float64", "fastest"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

_CPUINFO = Path("/proc/cpuinfo")

# CPU flags of instructions that multiply bfloat16, on x86 and ARM.
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}


def pick_dtype(dtype: str | None, device: str) -> torch.dtype:
    """Return the floating-point type to load a model in.

    None is float32 on the CPU and bfloat16 on CUDA (float16 on older devices). `"fastest"` is the
    same on CUDA; on the CPU it is bfloat16 if the processor has instructions for it.
    """
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {device!r}, but torch {torch.__version__} finds no CUDA device")
    if dtype == "fastest" and kind == "cpu":
        return torch.bfloat16 if _BFLOAT16 & _cpu_flags() else torch.float32
    if dtype in (None, "fastest") and kind == "cuda":
        # Older devices emulate bfloat16, which is slower than float32.
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if native else torch.float16
    if dtype in (None, "fastest"):
        return torch.float32
    picked: torch.dtype = getattr(torch, one_of("dtype", dtype, DTYPES))
    return picked


@cache
def _cpu_flags() -> frozenset[str]:
    """Return the words of /proc/cpuinfo, instruction sets among them; empty elsewhere."""
    return frozenset(_CPUINFO.read_text("utf-8").split() if _CPUINFO.is_file() else ())
