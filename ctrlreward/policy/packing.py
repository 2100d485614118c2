"""Packed weights of a policy while it decodes.

A product reads its weights in blocks of a layout of its own. For thousands of rows the time to
bring them there is lost in the rest; for the 32 rows of a decoding step it is a third of it. Packed
weights have that layout already. Two Intel cores held to AVX2, the products of a step of
SmolLM2-135M: 32 rows 100 ms, packed 66; 128 rows 200 ms, packed 186. With bfloat16 and AMX: 30 ms,
packed 21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from peft.tuners import lora
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from ctrlreward.processor.onednn import cpu_flags, linear

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


# 4 GiB in float32. The packed copy of a larger model might not fit into the memory.
_MOST_WEIGHTS = 2**30

# 1 GiB in float32. The packed weights of smaller models stay in memory until the next call.
_MOST_KEPT = 2**28

_Source = tuple[Tensor, int, int, int]  # weights, their address and version, number of rows
_Kept = dict[nn.Module, tuple[_Source | None, Product]]
_kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()


@contextmanager
def packed_products(model: Any, rows: int) -> Iterator[Callable[..., Tensor]]:
    """Compute the products of `rows` rows with packed weights inside the context.

    A layer is packed when it first sees that number of rows. In float32 the adapter is merged into
    the packed weights. In bfloat16 it stays beside them: merged weights would be rounded, and the
    policy that samples would not be the one that learns.

    Packed weights of up to 1 GiB are kept for the next call. It packs again what may have changed,
    in the memory of before: to map 430 MB anew took 0.1 to 0.6 s of a rollout of 2.5 s
    (SmolLM2-135M, 32 rows).

    Args:
        model: The policy, in eval mode.
        rows: Number of rows of a decoding step.

    Yields:
        The product of the output layer, with the arguments of `torch.nn.functional.linear`.
    """
    weights_in_all = sum(parameter.numel() for parameter in model.parameters())
    if weights_in_all > _MOST_WEIGHTS or torch.is_autocast_enabled("cpu"):
        yield linear
        return
    kept = _kept.setdefault(model, {}) if weights_in_all <= _MOST_KEPT else {}
    weights, adapted = _weights(model), _adapted(model)
    for layer, weight in weights.items():
        layer.forward = _Packed(layer, weight, rows, layer in adapted, kept)
    output = model.get_output_embeddings()
    packed_output = _Packed(output, lambda: output.weight, rows, output in adapted, kept)
    try:
        yield lambda hidden, weight, bias: packed_output(hidden)
    finally:
        for layer in weights:
            del layer.forward


class _Packed:
    """Forward pass of a linear layer, by packed weights for one number of rows.

    Args:
        layer: The layer, whose own forward pass takes all other inputs.
        weight: Returns the weights to pack.
        rows: That number of rows.
        adapted: Whether the layer has an adapter. peft merges it by changes of `weight.data`, which
            leave no trace in the version of the weights.
        kept: Products of earlier calls by layer, each with what it was packed from.
    """

    def __init__(
        self, layer: Any, weight: Callable[[], Tensor], rows: int, adapted: bool, kept: _Kept
    ) -> None:
        self.layer = layer
        self.adapted = adapted
        self.kept = kept
        self.plain: Callable[[Tensor], Tensor] = layer.forward
        self.bias: Tensor | None = layer.bias
        self.dtype: torch.dtype = layer.weight.dtype
        self.weight = weight
        self.rows = rows
        self.product: Product | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.numel() != self.rows * hidden.shape[-1] or hidden.dtype != self.dtype:
            return self.plain(hidden)
        if self.product is None:
            self.product = self._pack()
            if self.product is None:
                self.rows = 0  # never again
                return self.plain(hidden)
        flat = hidden.reshape(self.rows, -1)
        return self.product(flat, self.bias).view(*hidden.shape[:-1], -1)

    def _pack(self) -> Product | None:
        weight = self.weight()
        source = None if self.adapted else _source(weight, self.rows)
        before, product = self.kept.pop(self.layer, (None, None))
        if source is None or before is None or before[0] is not weight or before[1:] != source[1:]:
            product = None  # first, so that the new one takes its memory
            product = pack(weight, self.rows)
        if product is not None:
            self.kept[self.layer] = source, product
        return product


def _source(weight: Tensor, rows: int) -> _Source | None:
    """Return what tells frozen weights from changed ones; None for weights that learn."""
    if not isinstance(weight, nn.Parameter) or weight.requires_grad or weight.is_inference():
        return None
    return weight, weight.data_ptr(), weight._version, rows


def _weights(model: nn.Module) -> dict[nn.Module, Callable[[], Tensor]]:
    """Return the linear layers to pack, except the output layer, each with its weights."""
    adapters = [layer for layer in model.modules() if type(layer) is lora.Linear]
    merged = {layer.get_base_layer(): layer for layer in adapters if _can_merge(layer)}
    small = {
        part
        for layer in adapters
        for parts in (layer.lora_A, layer.lora_B)
        for part in parts.values()
    }
    weights: dict[nn.Module, Callable[[], Tensor]] = {}
    for layer in model.modules():  # exact types: a subclass may compute something else
        if layer in merged:
            weights[merged[layer]] = partial(_merged_weight, merged[layer])
        elif type(layer) is nn.Linear and layer not in small:
            weights[layer] = partial(getattr, layer, "weight")
    weights.pop(model.get_output_embeddings(), None)  # type: ignore[operator]
    return weights


def _adapted(model: nn.Module) -> set[nn.Module]:
    """Return the layers of adapters and the layers that they adapt."""
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    return {*layers, *(layer.get_base_layer() for layer in layers)}


def _can_merge(layer: Any) -> bool:
    """Return True for a plain LoRA layer on float32 weights."""
    base = layer.get_base_layer()
    plain = type(base) is nn.Linear and base.weight.dtype == torch.float32
    return plain and not (layer.merged or layer.lora_variant or any(layer.lora_bias.values()))


def _merged_weight(layer: Any) -> Tensor:
    """Return the weights of a layer with its active adapters.

    In one pass over the weights; peft's `get_delta_weight` and a sum take three.
    """
    weight: Tensor = layer.get_base_layer().weight
    if layer.disable_adapters:
        return weight
    for name in layer.active_adapters:
        if name in layer.lora_A:
            low_rank = layer.lora_B[name].weight, layer.lora_A[name].weight
            weight = torch.addmm(weight, *low_rank, alpha=layer.scaling[name])
    return weight
