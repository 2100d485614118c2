"""Tokens drawn from a policy."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from lightning_choice import LoRA
from peft import PeftModel
from scipy.stats import chisquare
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

from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, draw, log_probs, sample
from ctrlreward.weights.loading import load_tokenizer

PROMPTS = ["ab", "f", "ab", "abcdef", "f", "ab"]


@pytest.fixture
def policy(folder: str) -> PeftModel:
    torch.manual_seed(4)
    return drift(load_policy(folder, LoRA(4, dtype="float32"), "cpu").eval())


# Drawing


def test_each_token_is_drawn_for_its_share_of_the_unit_interval(monkeypatch) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)) * 3
    draws = 20_000
    grid = (torch.arange(draws, dtype=torch.float64)[:, None] + 0.5) / draws
    monkeypatch.setattr(torch, "rand", lambda *_, **__: grid)
    counts = draw(logits.repeat(draws, 1)).bincount(minlength=50)
    expected = logits.double().softmax(dim=-1) * draws
    assert (counts - expected).abs().max() <= 1.01


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_a_token_of_probability_0_is_never_drawn(uniform: float, monkeypatch) -> None:
    logits = torch.full((1, 6), -torch.inf)
    logits[0, 2:4] = torch.tensor([0.0, 1.0])
    monkeypatch.setattr(
        torch, "rand", lambda *_, **__: torch.tensor([[uniform]], dtype=torch.float64)
    )
    assert draw(logits).tolist() == [2 if uniform == 0 else 3]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    with pytest.raises(RuntimeError, match="the policy's logits are NaN or infinite, so no token"):
        draw(torch.tensor([[0.0, 1.0], [0.0, value]]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_diverged_policy_writes_no_text(
    temperature: float, policy: PeftModel, folder: str
) -> None:
    next(policy.parameters()).data.fill_(torch.nan)
    with pytest.raises(RuntimeError, match="the policy's logits are NaN or infinite, so no token"):
        sample(policy, load_tokenizer(folder), ["ab"], Generation(), temperature)


def test_pairs_of_tokens_have_their_probabilities(policy: PeftModel, folder: str) -> None:
    """Over all 64 pairs, with an adapter, by a chi-square test."""
    draws, temperature = 4000, 0.8
    policy.generation_config.eos_token_id = None
    torch.manual_seed(0)
    options = Generation(max_completion_length=2)
    rollout = sample(policy, load_tokenizer(folder), ["ab"] * draws, options, temperature)
    counts = (rollout.ids[:, -2] * 8 + rollout.ids[:, -1]).bincount(minlength=64)
    pairs = torch.tensor(list(product(range(8), repeat=2)))
    prompt = rollout.ids[0, :-2]
    with torch.no_grad():
        logits = policy(torch.cat([prompt.expand(64, -1), pairs], dim=1)).logits / temperature
    table = logits.double().log_softmax(dim=-1)[:, len(prompt) - 1 : -1]
    expected = table.gather(2, pairs[:, :, None]).sum(dim=(1, 2)).exp() * draws
    assert float(expected.sum()) == pytest.approx(draws)
    often = expected >= 5
    observed = [*counts[often].tolist(), int(counts[~often].sum())]
    assert (
        chisquare(observed, [*expected[often].tolist(), float(expected[~often].sum())]).pvalue
        > 1e-3
    )


# Prompts


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
    found = log_probs(policy, rollout[torch.arange(64)], temperature)[:, 0]
    torch.testing.assert_close(found, logits[0].log_softmax(dim=-1)[tokens[:64]])


def test_equal_prompts_are_read_once(policy: PeftModel, folder: str, monkeypatch) -> None:
    shapes: list[tuple[int, ...]] = []
    forward = policy.forward
    monkeypatch.setattr(
        policy, "forward", lambda **o: shapes.append(tuple(o["input_ids"].shape)) or forward(**o)
    )
    options = Generation(max_completion_length=3)
    rollout = sample(policy, load_tokenizer(folder), PROMPTS, options)
    assert shapes[0] == (3, rollout.ids.shape[1] - rollout.mask.shape[1])
    assert set(shapes[1:]) == {(6, 1)}


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
