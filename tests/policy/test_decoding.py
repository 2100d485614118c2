"""Tokens drawn from a policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning_choice import LoRA
from peft import PeftModel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tuner_records import drift

from ctrlreward.models.loading import load_tokenizer
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, log_probs, sample

PROMPTS = ["ab", "f", "ab", "abcdef", "f", "ab"]


@pytest.fixture
def policy(folder: str) -> PeftModel:
    torch.manual_seed(4)
    return drift(load_policy(folder, LoRA(4, dtype="float32"), "cpu").eval())


@pytest.mark.parametrize(
    "options",
    [
        *({"top_p": p} for p in (1e-6, 0.5, 0.9)),
        *({"top_k": k} for k in (1, 3, 60)),
        *({"min_p": p} for p in (0.0, 0.1, 1.0)),
        {"top_k": 5, "top_p": 0.8, "min_p": 0.2},
    ],
)
def test_the_tokens_that_transformers_keeps_are_drawn(policy, folder, options) -> None:
    tokenizer, temperature = load_tokenizer(folder), 1.3
    with torch.no_grad():
        ids = torch.tensor([tokenizer.encode("ab", add_special_tokens=False)])
        logits = policy(ids).logits[:, -1] / temperature
    kinds = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    theirs = LogitsProcessorList([kinds[name](value) for name, value in options.items()])
    kept = theirs(None, logits)[0].isfinite()
    torch.manual_seed(0)
    sampling = Generation(max_completion_length=1, **options)
    rollout = sample(policy, tokenizer, ["ab"] * 4000, sampling, temperature)
    tokens = rollout.ids[:, -1]
    assert tokens.unique().tolist() == kept.nonzero()[:, 0].tolist()
    # The whole distribution is learned from.
    found = log_probs(policy, rollout, temperature)[:, 0].detach()
    torch.testing.assert_close(found, logits[0].log_softmax(dim=-1)[tokens])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_greedy_decoding_is_that_of_transformers(kind: str, folder: str) -> None:
    """Prompt by prompt without padding. GPT-2 has layers that are no `nn.Linear`."""
    tokenizer = load_tokenizer(folder)
    torch.manual_seed(1)
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=8, initializer_range=0.5, **sizes))
    model.eval().generation_config.eos_token_id = 0
    rollout = sample(model, tokenizer, PROMPTS, Generation(max_completion_length=8), 0.0)
    for i, prompt in enumerate(PROMPTS):
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        options = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": tokenizer.pad_token_id}
        expected = model.generate(**inputs, **options)[0, inputs.input_ids.shape[1] :]
        length = int(rollout.mask[i].sum())
        assert rollout.ids[i, -rollout.mask.shape[1] :][:length].tolist() == expected.tolist()
