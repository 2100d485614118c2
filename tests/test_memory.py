from __future__ import annotations

import random
from collections.abc import Callable
from string import ascii_letters

import psutil
import pytest

from ctrlreward import Reward, Samples
from ctrlreward.scorers import CTRLEval, Distinct, Perplexity

# Allowed growth; the heap alone was seen to vary by 2 MiB.
_MAX_GROWTH_MIB = 6


@pytest.mark.parametrize("calls", [50, pytest.param(1000, marks=pytest.mark.soak)])
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

    process = psutil.Process()
    resident = []
    for call in range(1, calls + 1):
        score()
        if call % (calls // 10) == 0:
            resident.append(process.memory_info().rss / 2**20)
    reward.release()
    assert max(resident[5:]) - max(resident[1:5]) < _MAX_GROWTH_MIB
