"""Operations that a call dispatches, which a card waits for: one pass, however many texts."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_letters
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ctrlreward import CTRLEval, Perplexity, Reward, Samples

BUDGET = 2**16
SAMPLES = Samples(
    [f"{'Our soup was warm. ' * (1 + i % 3)}We ate it at {i}." for i in range(24)],
    prefixes=["Our soup"] * 24,
    labels=["positive", "negative"] * 12,
)


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(work: Callable[[], object]) -> int:
    with Counted() as counted:
        work()
    return counted.count


@pytest.mark.parametrize("case", ["relevance", "consistency", "both"])
def test_a_decoder_runs_once_for_all_texts(tiny_llama: Callable[[str], str], case: str) -> None:
    folder = tiny_llama(ascii_letters + " .!,:0123456789")
    options: Any = {"batch_tokens": BUDGET}
    perplexity = Perplexity(folder, **options)
    scorer: Any
    if case == "both":
        relevance = CTRLEval(folder, aspects="attribute_relevance", evaluators=6, **options)
        scorer = Reward({"a": relevance, "b": perplexity["log_likelihood"]}, aggregate="min")
    else:
        aspect: Any = "attribute_relevance" if case == "relevance" else case
        scorer = CTRLEval(folder, aspects=aspect, evaluators=6, **options)
    call = scorer if isinstance(scorer, Reward) else scorer.score
    call(SAMPLES)  # loads and calibrates
    model, ids = perplexity.loaded_model.model, torch.zeros((2, 9), dtype=torch.long)
    mask = torch.zeros((2, 1, 9, 9))
    inputs = {"input_ids": ids, "position_ids": ids, "attention_mask": mask, "use_cache": False}
    with torch.inference_mode():
        plain = operations(lambda: model(**inputs))
    many = operations(lambda: call(SAMPLES))
    few = operations(lambda: call(SAMPLES[:2]))
    # Beside the model's own: the mask, and one block of the output layer.
    assert many <= plain + 60
    assert many == few
