"""One way to batch for every model: sorted by length, packed under a token budget."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ctrlreward.processor import heap

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids = tuple[int, ...]
Result = TypeVar("Result")

# Texts that are scored at a time, about 47 of 60 words: what is kept of a text until its score is
# known (patterns, tokens, their log-probabilities) takes no more memory for more texts.
_CHARACTERS_AT_A_TIME = 2**14

# Measured on two cores with 32 MiB of cache, models of width 256 to 576: 1024 to 4096 tokens take
# the same time, 8192 up to 1.8 times as long; 2048 take less memory than 4096.
_CPU_TOKENS = 2**11
_LEAST_CUDA_TOKENS, _MOST_CUDA_TOKENS = 2**12, 2**16

# What a pass costs beside its tokens, as a share of the budget.
_PADDING = 1 / 64

# Fewer batches than this end before a progress bar could be read.
_BATCHES_WORTH_A_BAR = 20


def token_budget(model: PreTrainedModel, batch_tokens: int | None) -> int:
    """Tokens of one forward pass: what was asked for, or, of None, what suits the device.

    On the CPU that is what its cache holds; on CUDA what a quarter of the free memory holds, where
    a token takes eight vectors as wide as the model's widest layer.
    """
    if batch_tokens is not None:
        return batch_tokens
    if model.device.type != "cuda":
        return _CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(model.device)
    return tokens_within(free // 4, model)


def tokens_within(memory: int, model: PreTrainedModel) -> int:
    """Tokens whose activations take so many bytes, 4096 to 65536."""
    vocabulary = model.get_input_embeddings().num_embeddings
    matrices = [p.shape for p in model.parameters() if p.dim() == 2 and vocabulary not in p.shape]
    widest = max((max(shape) for shape in matrices), default=1)
    tokens = memory // (8 * widest * model.dtype.itemsize)
    return min(max(tokens, _LEAST_CUDA_TOKENS), _MOST_CUDA_TOKENS)


def windows(texts: Sequence[str]) -> Iterator[list[int]]:
    """Places of texts that are scored at a time, in the given order."""
    sizes = [len(text) for text in texts]
    return runs(range(len(texts)), sizes, _CHARACTERS_AT_A_TIME)


def runs(items: Iterable[int], sizes: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Items in their order, in runs of which each has one item, or sizes within the limit."""
    run: list[int] = []
    size = 0
    for i in items:
        if run and size + sizes[i] > limit:
            yield run
            run, size = [], 0
        run.append(i)
        size += sizes[i]
    if run:
        yield run


def run_batched(
    lengths: Sequence[int],
    batch_tokens: int,
    forward: Callable[[list[int]], Sequence[Result]],
    description: str,
) -> list[Result]:
    """Calls `forward` on batches of items and returns its results in the caller's order.

    Items are sorted by length, longest first, so that little is padded and memory runs out at
    the first batch or not at all. A batch that does run out of memory is halved and tried again;
    the smaller budget is kept for the rest.

    Args:
        lengths: Tokens of each item.
        batch_tokens: Largest number of tokens of a padded batch, rows × longest row. An item
            that is longer alone makes a batch of its own.
        forward: Takes indices into `lengths`, returns one result each, in that order. It runs
            under inference mode.
        description: What the progress bar says.

    Raises:
        torch.OutOfMemoryError: One item alone does not fit the device's memory.
    """
    pending = pack(lengths, batch_tokens)
    results: dict[int, Result] = {}
    with torch.inference_mode(), _progress(description, len(lengths), len(pending)) as advance:
        while pending:
            batch = pending[0]
            try:
                outputs = forward(batch)
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                budget = len(batch) * max(lengths[i] for i in batch) // 2
                pending = pack(lengths, max(1, budget), [i for part in pending for i in part])
                continue
            results.update(zip(batch, outputs, strict=True))
            pending = pending[1:]
            heap.trim_if_grown()
            advance(len(batch))
    return [results[i] for i in range(len(lengths))]


def pack(
    lengths: Sequence[int], batch_tokens: int, items: Iterable[int] | None = None
) -> list[list[int]]:
    """Indices of items (all unless told) in batches, longest first, each under the token budget.

    An item begins a batch of its own, too, where padding would cost more than a pass does.

    Raises:
        ValueError: The budget is not positive.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens = {batch_tokens}: give a positive number of tokens")
    batches: list[list[int]] = []
    longest, padding = 0, 0
    for i in sorted(range(len(lengths)) if items is None else items, key=lambda i: -lengths[i]):
        padding += longest - lengths[i]
        full = not batches or (len(batches[-1]) + 1) * longest > batch_tokens
        if full or padding > batch_tokens * _PADDING:
            batches.append([])
            longest, padding = lengths[i], 0
        batches[-1].append(i)
    return batches


def run_distinct(
    rows: Sequence[Ids],
    batch_tokens: int,
    forward: Callable[[list[Ids]], Sequence[Result]],
    description: str,
) -> list[Result]:
    """`run_batched` over token rows of which equal ones are computed once.

    Args:
        rows: Token ids of each item.
        batch_tokens: See `run_batched`.
        forward: Takes some of the rows, returns one result each, in that order.
        description: What the progress bar says.

    Returns:
        One result per row, in the given order; equal rows share theirs.
    """
    places: dict[Ids, int] = {}
    inverse = [places.setdefault(row, len(places)) for row in rows]
    distinct = list(places)
    results = run_batched(
        [len(row) for row in distinct],
        batch_tokens,
        lambda batch: forward([distinct[i] for i in batch]),
        description,
    )
    return [results[i] for i in inverse]


def pad_rows(rows: Sequence[Ids], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask, padded on the right, shape (rows, longest row) each."""
    width = max(1, *(len(row) for row in rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return moved(ids, device), moved(mask, device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on the device; CUDA fetches it while the CPU goes on."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def shows_progress() -> bool:
    """Whether somebody watches: bars on standard error are for a terminal, and not for CI."""
    return "CI" not in os.environ and sys.stderr.isatty()


@contextmanager
def _progress(description: str, items: int, batches: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for long work at a terminal; silent elsewhere and in CI."""
    if batches < _BATCHES_WORTH_A_BAR or not shows_progress():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=items)
        yield lambda done: bar.advance(task, done)
