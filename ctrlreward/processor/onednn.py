"""What frozen models compute by oneDNN on the CPU: faster products, and few shapes.

PyTorch leaves float32 products to MKL, which keeps its AVX-512 kernels to Intel's processors: on
two AMD EPYC cores with AVX-512 it reached 190 GFLOP/s, oneDNN, which PyTorch holds as well, 430.
GELU it leaves to oneDNN anyway.

oneDNN builds a kernel for each shape that it meets and keeps 1,024 of them, which takes time, and
memory that grows with the number of texts. So what it is given has rows in round numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.nn.functional import linear as plain
from transformers.activations import GELUActivation

_CPUINFO = Path("/proc/cpuinfo")

# Rows of a product are filled up to multiples of so many: a kernel takes 2 ms and half a MiB. With
# 64 or 256 CTRLEval took longer. Fewer rows than this gain little.
_ROWS = 128


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` with the same gradients, faster where none are asked for.

    Args:
        hidden: Shape (…, width).
        weight: Shape (outputs, width).
        bias: Shape (outputs,).

    Returns:
        Shape (…, outputs).
    """
    rows = hidden.numel() // hidden.shape[-1]
    given = [hidden, weight, *([] if bias is None else [bias])]
    single = all(tensor.dtype == torch.float32 for tensor in given)
    if rows < _ROWS or not (single and _computed_here(*given) and _mkl_holds_back()):
        return plain(hidden, weight, bias)
    filled = hidden.reshape(rows, -1)
    if missing := -rows % _ROWS:
        filled = filled.new_empty(rows + missing, filled.shape[1])
        filled[:rows].view(hidden.shape).copy_(hidden)
        filled[rows:] = 0
    product: Tensor = torch.ops.mkldnn._linear_pointwise(filled, weight, bias, "none", [], "")
    return product[:rows].view(*hidden.shape[:-1], -1)


class Linear(nn.Linear):
    """A layer that multiplies by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape (…, in_features) to (…, out_features)."""
        return linear(input, self.weight, self.bias)


class Gelu(GELUActivation):
    """GELU of a round number of rows and then of the rest, so of few shapes."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape to the same."""
        if not _computed_here(input):
            return gelu(input)
        rows = input.reshape(-1, input.shape[-1])
        found = torch.empty_like(rows)
        parts = [len(rows) - len(rows) % _ROWS, len(rows) % _ROWS]
        for part, made in zip(rows.split(parts), found.split(parts), strict=True):
            torch.ops.aten.gelu.out(part, out=made)
        return found.view(input.shape)


def adapt(model: nn.Module) -> None:
    """Has a frozen model compute by `Linear`, where that is faster, and by `Gelu`."""
    for layer in model.modules():  # of a subclass nothing is known
        if type(layer) is nn.Linear and _mkl_holds_back():
            layer.__class__ = Linear
        elif type(layer) is GELUActivation and layer.act is gelu:
            layer.__class__ = Gelu


def _computed_here(*given: Tensor) -> bool:
    """Whether an operator that has no gradient, and that the compiler doesn't know, will do."""
    return (
        all(tensor.device.type == "cpu" for tensor in given)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given))
        and not torch.compiler.is_compiling()
    )


@cache
def _mkl_holds_back() -> bool:
    """Whether this is a processor of AMD with AVX-512, of which MKL makes no use."""
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkl.is_available()
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return known and avx512 and "AuthenticAMD" in cpu_flags()


@cache
def cpu_flags() -> frozenset[str]:
    """Return vendor, model names and instruction sets from /proc/cpuinfo; empty elsewhere.

    Choices by flags are the same on a busy machine, where a timing would differ.
    """
    try:
        return frozenset(_CPUINFO.read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()
