"""oneDNN on the CPU for frozen models: faster products, and few distinct shapes.

PyTorch computes float32 products with MKL, which uses AVX-512 only on Intel processors: on two AMD
EPYC cores it reached 190 GFLOP/s, oneDNN 430. oneDNN compiles a kernel for each new shape, also of
GELU, so its inputs are padded or split to multiples of 128 rows.
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

# Rows of a product are padded to a multiple of this, since a kernel takes 2 ms and 0.5 MiB.
# CTRLEval was slower with 64 and with 256. Products of fewer rows gain little and use MKL.
_ROWS = 128


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear`, by oneDNN where faster and without gradients."""
    rows = hidden.numel() // hidden.shape[-1]
    operands = (hidden, weight) if bias is None else (hidden, weight, bias)
    if (
        rows < _ROWS
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or not _mkl_lacks_avx512()
        or any(t.dtype != torch.float32 or t.device.type != "cpu" for t in operands)
    ):
        return plain(hidden, weight, bias)
    padded = hidden.reshape(rows, -1)
    if missing := -rows % _ROWS:
        padded = padded.new_empty(rows + missing, padded.shape[1])
        padded[:rows].view(hidden.shape).copy_(hidden)
        padded[rows:] = 0
    product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
    return product[:rows].view(*hidden.shape[:-1], -1)


class Linear(nn.Linear):
    """Linear layer that uses `linear` of this module."""

    def forward(self, input: Tensor) -> Tensor:
        """Map shape (…, in_features) to (…, out_features)."""
        return linear(input, self.weight, self.bias)


class Gelu(GELUActivation):
    """GELU of a multiple of 128 rows and then of the rest, which limits the number of shapes."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply GELU elementwise."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or input.device.type != "cpu":
            return gelu(input)
        rows = input.reshape(-1, input.shape[-1])
        result = torch.empty_like(rows)
        parts = [len(rows) - len(rows) % _ROWS, len(rows) % _ROWS]
        for part, out in zip(rows.split(parts), result.split(parts), strict=True):
            torch.ops.aten.gelu.out(part, out=out)
        return result.view(input.shape)


def adapt(model: nn.Module) -> None:
    """Replace the linear (where oneDNN is faster) and GELU layers of a frozen model in place."""
    for layer in model.modules():  # exact types: a subclass may compute something else
        if type(layer) is nn.Linear and _mkl_lacks_avx512():
            layer.__class__ = Linear
        elif type(layer) is GELUActivation and layer.act is gelu:
            layer.__class__ = Gelu


@cache
def _mkl_lacks_avx512() -> bool:
    """Return True on AMD processors with AVX-512, which MKL does not use there."""
    has_operator = (
        hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkl.is_available()
    )
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_operator and avx512 and "AuthenticAMD" in cpu_flags()


@cache
def cpu_flags() -> frozenset[str]:
    """Return vendor, model names and instruction sets from /proc/cpuinfo; empty elsewhere.

    Choices by flags are the same on a busy machine, where a timing would differ.
    """
    try:
        return frozenset(_CPUINFO.read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()
