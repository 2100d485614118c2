"""The floor: what a work costs in operations and bytes, over what the machine measured plainly.

Operations are counted while the work runs: those of matrix products and attention, an addition
and a multiplication each. Bytes are the right-hand matrices of these products, which are the
weights, once a product, and what comes out, logits included; all else may stay in the cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ctrlreward.processor import onednn

_SIZES = ((2048, 2048, 2048), (4096, 576, 1536), (4096, 256, 1024))
_COPY_BYTES = 2**28


@dataclass(frozen=True)
class Speed:
    """What the machine reaches with the threads that are set, in 10⁹ a second."""

    gflops: float
    gbytes: float


@dataclass
class Cost:
    """What was counted.

    Attributes:
        flops: Operations of matrix products and attention.
        bytes: Weights and outputs of matrix products, four bytes a number.
        embedded: Ids that embedding layers looked up, padding included: where a model has one
            such layer, the tokens that it reads.
    """

    flops: int = 0
    bytes: int = 0
    embedded: int = 0


@dataclass(frozen=True)
class Floor:
    """How near a measured time is to what the machine could do.

    Attributes:
        gflop_needed: 10⁹ operations that the work needs, without padding.
        gflop_done: That were done, padding included.
        gbyte: 10⁹ bytes of weights and outputs.
        floor_s: The longer of the two: operations needed over the machine's, bytes likewise.
        share: `floor_s` over the measured seconds; 1 is the floor.
    """

    gflop_needed: float
    gflop_done: float
    gbyte: float
    floor_s: float
    share: float


@cache
def speed() -> Speed:
    """Best of several float32 matrix products, PyTorch's and ours, and of several copies (read
    and written)."""
    best = 0.0
    for rows, inner, columns in _SIZES:
        a, b = torch.rand(rows, inner), torch.rand(columns, inner)
        for multiply in (torch.nn.functional.linear, onednn.linear):
            seconds = _fastest(lambda m=multiply, a=a, b=b: m(a, b))
            best = max(best, 2 * rows * inner * columns / seconds)
    source = torch.rand(_COPY_BYTES // 4)
    target = torch.empty_like(source)
    copied = 2 * _COPY_BYTES / _fastest(lambda: target.copy_(source))
    return Speed(best / 1e9, copied / 1e9)


def of(done: Callable[[], Any], needed: Callable[[], Any], seconds: float) -> Floor | None:
    """The floor of a work that took so many seconds; None where no matrix is multiplied."""
    with counted() as cost:
        done()
    necessary = cost
    if needed is not done:
        with counted() as necessary:
            needed()
    if not cost.flops:
        return None
    reached = speed()
    # A row alone may be given to another attention kernel, which does more for the same.
    flops = min(necessary.flops, cost.flops)
    floor_s = max(flops / reached.gflops, cost.bytes / reached.gbytes) / 1e9
    return Floor(flops / 1e9, cost.flops / 1e9, cost.bytes / 1e9, floor_s, floor_s / seconds)


@contextmanager
def plain_products() -> Iterator[None]:
    """Our models multiply as PyTorch has it: for peers that run on them, and for counting."""
    own = onednn._mkl_holds_back
    onednn._mkl_holds_back = lambda: False
    try:
        yield
    finally:
        onednn._mkl_holds_back = own


@contextmanager
def counted() -> Iterator[Cost]:
    """Counts what runs inside; the numbers are complete when it is left."""
    cost = Cost()

    def add(module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, torch.nn.Embedding) and args and isinstance(args[0], torch.Tensor):
            cost.embedded += args[0].numel()

    def product(a: Any, b: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        cost.bytes += 4 * (math.prod(b) + math.prod(out_shape))
        return 2 * math.prod(a) * b[-1]

    def sum_of_product(added: Any, a: Any, b: Any, *args: Any, **kwargs: Any) -> int:
        return product(a, b, **kwargs)

    counting = {
        torch.ops.aten.mm: product,
        torch.ops.aten.addmm: sum_of_product,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    }
    hook = register_module_forward_hook(add)
    try:
        with plain_products(), FlopCounterMode(display=False, custom_mapping=counting) as counter:
            yield cost
    finally:
        hook.remove()
    cost.flops = counter.get_total_flops()


def unpadded(model: Any, work: Callable[[], Any]) -> Callable[[], Any]:
    """The same work with every row in a batch of its own, for counting only.

    Args:
        model: What holds the `batch_tokens` that the work's rows are packed under.
        work: Ours.
    """

    def alone() -> None:
        budget = model.batch_tokens
        model.batch_tokens = 1
        try:
            work()
        finally:
            model.batch_tokens = budget

    return alone


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several runs, after a warm-up."""
    work()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
