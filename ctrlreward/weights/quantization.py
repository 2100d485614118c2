"""Quantization of frozen weights with bitsandbytes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from transformers import BitsAndBytesConfig

from ctrlreward.extras import import_extra

Quantization: TypeAlias = Literal["nf4", "int8"]


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
