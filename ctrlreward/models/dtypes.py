"""Floating-point types of models, and quantization by bitsandbytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import torch
from transformers import BitsAndBytesConfig

from ctrlreward.arguments import one_of
from ctrlreward.extras import import_extra

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float64", "fastest"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Quantization: TypeAlias = Literal["nf4", "int8"]

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


def quantization_config(
    quantization: Quantization | None, dtype: torch.dtype, argument: str
) -> BitsAndBytesConfig | None:
    """Return the configuration of transformers; None for weights that are not quantized.

    `dtype` is the type of the computations, `argument` names the choice in the error.
    """
    if quantization is None:
        return None
    import_extra("bitsandbytes", f"{argument} = {quantization!r}")
    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
