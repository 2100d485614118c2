"""Packed weights of a policy while it decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners import lora
from torch import Tensor, nn

from ctrlreward.processor.onednn import linear
from ctrlreward.processor.packed import Product, pack

# 4 GiB in float32. The packed copy of a larger model might not fit into the memory.
_MOST_WEIGHTS = 2**30


@contextmanager
def packed_products(model: Any, rows: int) -> Iterator[Callable[..., Tensor]]:
    """Compute the products of `rows` rows with packed weights inside the context.

    A layer is packed when it first sees that number of rows, and freed at the end. In float32 the
    adapter is merged into the packed weights. In bfloat16 it stays beside them: merged weights
    would be rounded, and the policy that samples would not be the one that learns.

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
    weights = _weights(model)
    for layer, weight in weights.items():
        layer.forward = _Packed(layer, weight, rows)
    output = model.get_output_embeddings()
    packed_output = _Packed(output, lambda: output.weight, rows)
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
    """

    def __init__(self, layer: Any, weight: Callable[[], Tensor], rows: int) -> None:
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
            self.product = pack(self.weight(), self.rows)
            if self.product is None:
                self.rows = 0  # never again
                return self.plain(hidden)
        flat = hidden.reshape(self.rows, -1)
        return self.product(flat, self.bias).view(*hidden.shape[:-1], -1)


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
