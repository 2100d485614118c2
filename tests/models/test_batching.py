from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlreward.models import batching
from ctrlreward.models.batching import run_batched, windows

LENGTHS = st.lists(st.integers(0, 50), max_size=30)
BUDGETS = st.integers(1, 200)


def padded(batch: Sequence[int], lengths: Sequence[int]) -> int:
    return len(batch) * max(lengths[i] for i in batch)


def batches_of(lengths: Sequence[int], budget: int) -> list[list[int]]:
    batches: list[list[int]] = []

    def forward(batch: list[int]) -> list[int]:
        assert torch.is_inference_mode_enabled()
        batches.append(batch)
        return batch

    assert run_batched(lengths, budget, forward) == list(range(len(lengths)))
    return batches


@given(LENGTHS, BUDGETS)
def test_all_items_are_packed_once_longest_first_under_the_budget(
    lengths: list[int], budget: int
) -> None:
    batches = batches_of(lengths, budget)
    packed = [i for batch in batches for i in batch]
    assert sorted(packed) == list(range(len(lengths)))
    assert [lengths[i] for i in packed] == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or padded(batch, lengths) <= budget for batch in batches)


def limited(
    lengths: Sequence[int], memory: int, seen: list[list[int]]
) -> Callable[[list[int]], list[int]]:
    """A forward pass that runs out of memory above so many padded tokens."""

    def forward(batch: list[int]) -> list[int]:
        seen.append(batch)
        if padded(batch, lengths) > memory:
            raise torch.OutOfMemoryError("out of memory")
        return batch

    return forward


@settings(max_examples=25)  # each one out of memory collects garbage
@given(LENGTHS, BUDGETS, st.integers(50, 400))
def test_a_batch_out_of_memory_is_halved_until_it_fits(
    lengths: list[int], budget: int, memory: int
) -> None:
    results = run_batched(lengths, budget, limited(lengths, memory, []))
    assert results == list(range(len(lengths)))


def test_one_item_that_does_not_fit_raises() -> None:
    seen: list[list[int]] = []
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        run_batched([9, 9, 9], 27, limited([9, 9, 9], 8, seen))
    assert seen == [[0, 1, 2], [0]]


@given(st.lists(st.text("ab", max_size=6), max_size=20), st.integers(1, 12))
def test_windows_hold_every_text_once_in_order(texts: list[str], characters: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "WINDOW_CHARACTERS", characters)
        found = list(windows([*map(len, texts)]))
    assert [i for window in found for i in window] == list(range(len(texts)))
    for window, following in pairwise(found):
        size = sum(len(texts[i]) for i in window)
        assert len(window) == 1 or size <= characters
        assert size + len(texts[following[0]]) > characters
