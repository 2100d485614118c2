"""Linear layers of frozen float32 models by oneDNN, where PyTorch's own choice holds back.

PyTorch leaves float32 products to MKL, which keeps its AVX-512 kernels to Intel's processors: on
two AMD EPYC cores with AVX-512 it reached 190 GFLOP/s, oneDNN, which PyTorch holds as well, 430.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as plain

# Rows of a product are filled up to multiples of so many: oneDNN builds a kernel for each number of
# rows, which takes 2 ms and half a MiB that stays. With 64 or 256 CTRLEval took longer. Fewer rows
# than this gain little.
_ROWS = 128

_CPUINFO = Path("/proc/cpuinfo")


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
    if rows < _ROWS or not _suits(hidden, weight, bias):
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


def speed_up(model: nn.Module) -> None:
    """Has a frozen model's linear layers multiply by `linear`, where it is faster."""
    if _mkl_holds_back():
        for layer in model.modules():
            if type(layer) is nn.Linear:  # a subclass may do more
                layer.__class__ = Linear


def _suits(hidden: Tensor, *parameters: Tensor | None) -> bool:
    """Whether oneDNN's product may and should be taken: it has no gradient."""
    given = [hidden, *(p for p in parameters if p is not None)]
    return (
        all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in given)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given))
        and not torch.compiler.is_compiling()
        and _mkl_holds_back()
    )


@cache
def _mkl_holds_back() -> bool:
    """Whether this processor has AVX-512 and isn't Intel's."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not _CPUINFO.is_file():
        return False
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkl.is_available()
    return known and "GenuineIntel" not in _CPUINFO.read_text(encoding="utf-8")
