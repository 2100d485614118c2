from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable
from string import ascii_letters

import pytest
import torch

from ctrlreward import Reward, Samples
from ctrlreward.scorers import CTRLEval, Distinct, Perplexity

# Allowed growth of what the library holds, arrays and tensors included. Not of the process, whose
# allocator, and kernels that are compiled for each new shape on some processors, are no leak.
_MAX_GROWTH_KIB = 160


def held_kib() -> float:
    """Return the memory of objects and arrays, since `tracemalloc.start`, and of all tensors."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return (tracemalloc.get_traced_memory()[0] + sum(storages.values())) / 2**10


@pytest.mark.parametrize(
    "calls", [30, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_memory_is_flat_over_many_calls(calls: int, tiny_llama: Callable[[str], str]) -> None:
    """As in training, texts differ in words and length from call to call."""
    folder = tiny_llama(ascii_letters + " .!,\n?'")
    ctrleval = CTRLEval(folder, evaluators=6)
    perplexity = Perplexity(folder)
    reward = Reward(
        {
            **{aspect: ctrleval[aspect] for aspect in ctrleval.specs},
            "log_likelihood": perplexity["log_likelihood"],
            "distinct_2": Distinct(folder)["distinct_2"],
        }
    )
    draw = random.Random(0)
    words = ["".join(draw.choices(ascii_letters, k=5)) for _ in range(2000)]

    def score() -> None:
        texts = [
            f"The soup {' '.join(draw.choices(words, k=draw.randint(2, 8)))}. It {word}."
            for word in draw.choices(words, k=4)
        ]
        batch = reward(Samples(texts, prefixes=["The soup"] * 4, labels=["positive"] * 4))
        assert not batch.failed.any()

    held = []
    score()  # loads the models
    tracemalloc.start()
    try:
        for call in range(1, calls + 1):
            score()
            if call % (calls // 10) == 0:
                held.append(held_kib())
    finally:
        tracemalloc.stop()
        reward.release()
    assert max(held[5:]) - max(held[1:5]) < _MAX_GROWTH_KIB, held
