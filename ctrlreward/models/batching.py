"""Batching for all models: sorted by length, packed under a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ctrlreward.arguments import positive
from ctrlreward.models.accelerators import free_memory, free_unused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids = tuple[int, ...]
Item = TypeVar("Item")
Result = TypeVar("Result")

# Characters of one window of texts on the CPU, about 47 texts of 60 words; more for larger passes.
# Tokens are kept for one window only, so that memory does not grow with the texts.
WINDOW_CHARACTERS = 2**14

# Measured on two cores with 32 MiB of cache and models of width 256 to 576: budgets of 1024 to 4096
# tokens take the same time, 8192 up to 1.8 times as long; 2048 takes less memory than 4096.
_CPU_TOKENS = 2**11
_MIN_ACCELERATOR_TOKENS, _MAX_ACCELERATOR_TOKENS = 2**12, 2**16


def token_budget(model: PreTrainedModel, batch_tokens: int | None) -> int:
    """Return the tokens of a pass: as given, or for a CPU's cache, or an accelerator's memory.

    A quarter of the free memory has eight activations a layer for each of 4096 to 65536 tokens.
    """
    if batch_tokens is not None:
        return positive("batch_tokens", batch_tokens)
    free = free_memory(model.device)
    if free is None:
        return _CPU_TOKENS
    vocabulary = model.get_input_embeddings().num_embeddings
    matrices = [p.shape for p in model.parameters() if p.dim() == 2 and vocabulary not in p.shape]
    widest = max((max(shape) for shape in matrices), default=1)
    tokens = free // 4 // (8 * widest * model.dtype.itemsize)
    return min(max(tokens, _MIN_ACCELERATOR_TOKENS), _MAX_ACCELERATOR_TOKENS)


def pass_cost(model: PreTrainedModel, batch_tokens: int) -> float:
    """Return the fixed cost of a forward pass, in tokens of padding; on the CPU 1/64 of the budget.

    An accelerator waits for the host: about 50 operations a layer at 6 µs, at 40 % of 790 TFLOP/s.
    """
    if free_memory(model.device) is None:
        return batch_tokens / 64 if batch_tokens <= _CPU_TOKENS else batch_tokens
    config = model.config
    layers = getattr(config, "num_hidden_layers", 12) * (1 + config.is_encoder_decoder)
    weights = sum(p.numel() for p in model.parameters())
    return float(layers * 50 * 6e-6 * 0.4 * 790e12 / (2 * weights))


def logits_within(batch_tokens: int, device: torch.device) -> int:
    """Return the number of logits, states × words, of one block of the output layer.

    On the CPU less than 32 MiB, which the heap would return to the system each time, else a quarter
    of the free memory, at 16 bytes per logit with all copies.
    """
    free = free_memory(device)
    return min(batch_tokens * 2**9, 6 * 2**20) if free is None else max(2**22, free // 64)


def windows(sizes: Sequence[int], batch_tokens: int = _CPU_TOKENS) -> Iterator[range]:
    """Yield indices of items to score together, by their numbers of characters, or a single one."""
    largest = WINDOW_CHARACTERS * max(1, batch_tokens // _CPU_TOKENS)
    start = characters = 0
    for i, size in enumerate((*sizes, largest + 1)):  # which ends the last window
        if i > start and characters + size > largest:
            yield range(start, i)
            start, characters = i, 0
        characters += size


def in_windows(
    items: Sequence[Item],
    sizes: Sequence[int],
    answer: Callable[[Sequence[Item]], list[Result]],
    batch_tokens: int = _CPU_TOKENS,
) -> list[Result]:
    """Call `answer` on the items of one window after the other; return a result each."""
    results: list[Result] = []
    for window in windows(sizes, batch_tokens):
        results += answer(items[window.start : window.stop])
    return results


def run_batched(
    lengths: Sequence[int],
    batch_tokens: int,
    forward: Callable[[list[int]], Sequence[Result]],
    padding: float | None = None,
) -> list[Result]:
    """Call `forward` on batches of items, by their indices; return a result each, in order.

    The longest items come first; a batch that exceeds the memory is halved, and the smaller budget
    is kept. A batch ends where its padding would exceed `padding` tokens, by default 1/64 of the
    budget.
    """
    pending = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    results: dict[int, Result] = {}
    with torch.inference_mode():
        while pending:
            longest, unused, size = lengths[pending[0]], 0, 1
            while size < len(pending) and (size + 1) * longest <= batch_tokens:
                unused += longest - lengths[pending[size]]
                if unused > (batch_tokens / 64 if padding is None else padding):
                    break
                size += 1
            batch, rest = pending[:size], pending[size:]
            try:
                outputs: Sequence[Result] | None = forward(batch)
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                outputs = None
            if outputs is None:
                free_unused()  # after the handler: its traceback holds the failed batch's tensors
                batch_tokens = size * longest // 2
                continue
            results.update(zip(batch, outputs, strict=True))
            pending = rest
    return [results[i] for i in range(len(lengths))]


def run_distinct(
    rows: Sequence[Ids],
    batch_tokens: int,
    forward: Callable[[list[Ids]], Sequence[Result]],
    padding: float | None = None,
) -> list[Result]:
    """Run rows of token ids in batches, equal ones once; return a result per row, in order."""
    indices: dict[Ids, int] = {}
    inverse = [indices.setdefault(row, len(indices)) for row in rows]
    distinct = list(indices)
    results = run_batched(
        [len(row) for row in distinct],
        batch_tokens,
        lambda batch: forward([distinct[i] for i in batch]),
        padding,
    )
    return [results[i] for i in inverse]


def pad_rows(
    rows: Sequence[Ids] | Sequence[npt.NDArray[np.int64]], pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pad token ids on the right; return ids and attention mask, each (rows, longest row)."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = np.concatenate(rows)
    both = torch.from_numpy(np.stack([ids, mask])).to(device)  # one copy to the device
    return both[0], both[1]
