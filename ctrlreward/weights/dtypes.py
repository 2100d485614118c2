"""The floating-point type that a model runs in."""

from __future__ import annotations

import torch

from ctrlreward.processor.onednn import cpu_flags

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

# The names of instructions that multiply bfloat16, of x86 and of ARM.
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}


def pick_dtype(dtype: str | None, device: str) -> torch.dtype:
    """The floating-point type to load a model in.

    Args:
        dtype: `"float16"`, `"bfloat16"`, `"float32"`, `"float64"`; None picks float32, on CUDA
            bfloat16 (float16 where the device has none). `"fastest"` is None on CUDA, and on the
            CPU bfloat16 where it has instructions for it: it multiplies two to four times as
            fast by them, where others emulate it at a seventh of the speed.
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
        if kind == "cpu" and _BFLOAT16 & cpu_flags():
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
