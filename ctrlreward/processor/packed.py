"""Products of few rows with packed weights on the CPU.

A product reads its weights in blocks of a layout of its own. For thousands of rows the time to
bring them there is lost in the rest; for the 32 rows of a decoding step it is a third of it. Packed
weights have that layout already. Two Intel cores held to AVX2, the products of a step of
SmolLM2-135M: 32 rows 100 ms, packed 66; 128 rows 200 ms, packed 186. With bfloat16 and AMX: 30 ms,
packed 21.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from ctrlreward.processor.onednn import cpu_flags

Product = Callable[[Tensor, Tensor | None], Tensor]


def pack(weight: Tensor, rows: int) -> Product | None:
    """Return the product with a packed copy of a weight; None where packing gains nothing.

    Args:
        weight: Shape (outputs, width), without gradients.
        rows: Number of rows of the products.

    Returns:
        A function from hidden states of shape (rows, width), and a bias of shape (outputs,) or
        None, to shape (rows, outputs).
    """
    if weight.device.type != "cpu":
        return None
    if weight.dtype == torch.float32 and _mkl_packs():
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
        # The plain weights would be read for another number of rows; here they give the shape.
        shape = weight.new_empty(1, 1).expand(weight.shape)
        return lambda hidden, bias: torch.ops.mkl._mkl_linear(hidden, packed, shape, bias, rows)
    if weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _has_bfloat16()):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        multiply = torch.ops.mkldnn._linear_pointwise
        return lambda hidden, bias: multiply(hidden, packed, bias, "none", [], "")
    return None


@cache
def _mkl_packs() -> bool:
    """Return True where MKL is the faster one: not on AMD processors (see `onednn`)."""
    return torch.backends.mkl.is_available() and "AuthenticAMD" not in cpu_flags()


@cache
def _has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
