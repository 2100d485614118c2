"""Gradient checkpointing: the same gradients from fewer kept activations."""

from __future__ import annotations

import pytest
import torch
from tuner_records import drift

from ctrlreward import Samples

BATCH = Samples(texts=["", "", ""], prefixes=["", "", ""], prompts=["abc", "cd", "f"])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("family", ["llama", "t5", "bart"])
def test_gradients_are_the_same(tuner, folder, tiny_seq2seq, family, dropout) -> None:
    """Of one step, of a policy away from its reference."""
    model = folder if family == "llama" else tiny_seq2seq(family)
    found, counts = [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)  # of new adapters
        module = tuner(model=model, gradient_checkpointing=checkpointing, lora_dropout=dropout)
        module.configure_model()
        named = dict(module.named_modules())
        layer = next(m for n, m in named.items() if n.endswith(("layers.0", "block.0")))
        norm = next(m for n, m in layer.named_modules() if "norm" in n)
        calls: list[int] = []
        norm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        drift(module, 1)
        module.training_step(BATCH, 0).backward()
        found.append({n: p.grad for n, p in module.named_parameters() if p.requires_grad})
        counts.append(len(calls))
    assert counts[1] == counts[0] + 1  # once more, in the backward pass; not while sampling
    # T5's decoder layers add up their gradients of the encoder in another order.
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert any(g.abs().max() > 0 for g in found[0].values())
