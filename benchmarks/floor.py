"""Roofline: the lower bound of a run time from its operations, bytes and the machine's peak rates.

Operations are counted during a run: those of matrix products and attention, where a multiplication
and an addition count as two. Bytes are, for each matrix product, its right-hand matrix (the
weights) and its output, logits included; everything else may stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from step_clock import now
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

_SIZES = ((2048, 2048, 2048), (4096, 576, 1536), (4096, 256, 1024))
_CARD_SIZES = ((8192, 8192, 8192), (16384, 4096, 4096))
_COPY_BYTES = 2**28


@dataclass(frozen=True)
class Speed:
    """Peak rates of the machine with the current number of threads.

    Attributes:
        gflops: 10⁹ operations per second in a matrix product.
        gbytes: 10⁹ bytes per second in a copy, read and written.
    """

    gflops: float
    gbytes: float


@dataclass
class Cost:
    """Operations and bytes counted during a run.

    Attributes:
        flops: Operations of matrix products and attention.
        bytes: Bytes of weights and outputs of matrix products, four per number.
        embedded: Ids looked up by embedding layers, padding included. For a model with one such
            layer, this is the number of tokens it reads.
    """

    flops: int = 0
    bytes: int = 0
    embedded: int = 0


@dataclass(frozen=True)
class Floor:
    """Lower bound of a run time, and the measured time relative to it.

    Attributes:
        gflop_needed: 10⁹ operations without padding.
        gflop_done: 10⁹ operations that were done, padding included.
        gbyte: 10⁹ bytes of weights and outputs.
        floor_s: Lower bound in seconds: the maximum of the operations needed and the bytes, each
            over the machine's peak rate.
        share: `floor_s` over the measured seconds; at most 1, higher is better.
    """

    gflop_needed: float
    gflop_done: float
    gbyte: float
    floor_s: float
    share: float


@cache
def speed(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Speed:
    """Return the best rates of several matrix products and of a copy."""
    best = 0.0
    for rows, inner, columns in _CARD_SIZES if device.startswith("cuda") else _SIZES:
        a = torch.rand(rows, inner).to(device, dtype)
        b = torch.rand(columns, inner).to(device, dtype)
        seconds = _fastest(lambda a=a, b=b: torch.nn.functional.linear(a, b))
        best = max(best, 2 * rows * inner * columns / seconds)
    source = torch.rand(_COPY_BYTES // 4).to(device)
    target = torch.empty_like(source)
    copied = 2 * _COPY_BYTES / _fastest(lambda: target.copy_(source))
    return Speed(best / 1e9, copied / 1e9)


def measure(
    done: Callable[[], Any],
    needed: Callable[[], Any],
    seconds: float,
    dtype: torch.dtype = torch.float32,
) -> Floor | None:
    """Return the lower bound of a run; None if it has no matrix products.

    Args:
        done: The run that was timed.
        needed: The same run without padding, or `done` again.
        seconds: The measured time of `done`.
        dtype: Type of the weights; all products are taken to be of this type.
    """
    with count_cost() as cost:
        done()
    needed_cost = cost
    if needed is not done:
        with count_cost() as needed_cost:
            needed()
    if not cost.flops:
        return None
    peak = speed(dtype)
    size = dtype.itemsize / 4  # counted as four bytes
    # For a single row, PyTorch may pick an attention kernel that does more operations.
    flops = min(needed_cost.flops, cost.flops)
    floor_s = max(flops / peak.gflops, size * cost.bytes / peak.gbytes) / 1e9
    return Floor(flops / 1e9, cost.flops / 1e9, size * cost.bytes / 1e9, floor_s, floor_s / seconds)


@contextmanager
def count_cost() -> Iterator[Cost]:
    """Count operations and bytes inside the context; `flops` is set on exit."""
    cost = Cost()

    def count_ids(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, torch.nn.Embedding) and args and isinstance(args[0], torch.Tensor):
            cost.embedded += args[0].numel()

    def product(a: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        cost.bytes += 4 * (math.prod(b) + math.prod(out_shape))
        return 2 * math.prod(a) * b[-1]

    def sum_and_product(bias: Any, a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
        return product(a, b, **kwargs)

    formulas = {
        torch.ops.aten.mm: product,
        torch.ops.aten.addmm: sum_and_product,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    }
    hook = register_module_forward_hook(count_ids)
    try:
        with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
            yield cost
    finally:
        hook.remove()
    cost.flops = counter.get_total_flops()


def unpadded(model: Any, work: Callable[[], Any]) -> Callable[[], Any]:
    """Return the same work with one row per batch, for counting only.

    Args:
        model: The model whose `batch_tokens` limits the batches of the work.
        work: The work to run.
    """

    def row_by_row() -> None:
        budget = model.batch_tokens
        model.batch_tokens = 1
        try:
            work()
        finally:
            model.batch_tokens = budget

    return row_by_row


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _fastest(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of five runs after a warm-up."""
    work()
    seconds = []
    for _ in range(5):
        started = now()
        work()
        seconds.append(now() - started)
    return min(seconds)
