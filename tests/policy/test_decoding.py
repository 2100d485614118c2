"""Tokens drawn from a policy, and the packed weights that compute their probabilities."""

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
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from ctrlreward.policy import packing
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.packing import packed_products
from ctrlreward.policy.rollouts import Generation, draw, log_probs, sample
from ctrlreward.weights.loading import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSE = {"float32": {"rtol": 1e-4, "atol": 1e-5}, "bfloat16": {"rtol": 5e-2, "atol": 5e-2}}
PROMPTS = ["ab", "f", "ab", "abcdef", "f", "ab"]


def draw_adapter(policy: PeftModel, std: float) -> None:
    """Give the adapter an effect; untrained, it has none."""
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)


@pytest.fixture
def policy(folder: str) -> PeftModel:
    torch.manual_seed(4)
    policy = load_policy(folder, LoRA(4, dtype="float32"), "cpu").eval()
    draw_adapter(policy, std=0.3)
    return policy


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


def test_pairs_of_tokens_have_their_probabilities(policy: PeftModel, folder: str) -> None:
    """Over all 64 pairs, with an adapter and packed weights, by a chi-square test."""
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
def test_the_tokens_that_transformers_keeps_are_drawn(
    policy: PeftModel, folder: str, options: dict[str, Any]
) -> None:
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
    assert rollout.ids[:, -1].unique().tolist() == kept.nonzero()[:, 0].tolist()


def test_the_nucleus_is_sampled_from_and_the_whole_distribution_learned_from(
    policy: PeftModel, folder: str
) -> None:
    draws, temperature = 4000, 1.3
    tokenizer = load_tokenizer(folder)
    with torch.no_grad():
        ids = torch.tensor([tokenizer.encode("ab", add_special_tokens=False)])
        logits = policy(ids).logits[:, -1] / temperature
    nucleus = TopPLogitsWarper(0.6)(None, logits)[0].double().softmax(dim=-1)
    kept = nucleus > 0
    assert 1 < kept.sum() < len(kept)
    torch.manual_seed(0)
    options = Generation(max_completion_length=1, top_p=0.6)
    rollout = sample(policy, tokenizer, ["ab"] * draws, options, temperature)
    tokens = rollout.ids[:, -1]
    counts = tokens.bincount(minlength=len(kept))
    assert counts[~kept].sum() == 0
    assert chisquare(counts[kept], nucleus[kept] * draws).pvalue > 0.01
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


# Packed products


def outputs(policy: PeftModel, rows: int) -> torch.Tensor:
    ids = torch.arange(rows)[:, None] % 8
    with torch.no_grad():
        return policy(ids).logits


@pytest.mark.parametrize("state", ["adapter", "disabled", "merged", "two adapters"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_layers_compute_the_same(folder: str, dtype: Any, state: str) -> None:
    torch.manual_seed(4)
    policy = load_policy(folder, LoRA(4, dtype=dtype), "cpu").eval()
    if state == "two adapters":
        policy.add_adapter("other", policy.peft_config["default"])
    draw_adapter(policy, std=0.3)
    if state == "two adapters":
        policy.base_model.set_adapter(["default", "other"])
    if state == "merged":
        policy.merge_adapter()
    if state == "disabled":
        policy.base_model.disable_adapter_layers()
    own = {name: layer.forward for name, layer in policy.named_modules()}
    expected, others = outputs(policy, 5), outputs(policy, 3)
    with packed_products(policy, 5):
        assert any(layer.forward != own[name] for name, layer in policy.named_modules())
        for _ in range(2):
            torch.testing.assert_close(outputs(policy, 5), expected, **CLOSE[dtype])
        assert torch.equal(outputs(policy, 3), others)
    assert all(layer.forward == own[name] for name, layer in policy.named_modules())
    assert torch.equal(outputs(policy, 5), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changed", ["lora_B", "layers.0.mlp.up_proj", "embed_tokens"])
def test_weights_that_changed_are_packed_again(folder: str, dtype: Any, changed: str) -> None:
    torch.manual_seed(4)
    policy = load_policy(folder, LoRA(4, dtype=dtype), "cpu").eval()
    for _ in range(3):
        for name, parameter in policy.named_parameters():
            if changed in name:
                with torch.no_grad():
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        expected = [outputs(policy, rows) for rows in (5, 3)]
        for rows, before in zip((5, 3), expected, strict=True):
            with torch.inference_mode(), packed_products(policy, rows) as multiply:
                torch.testing.assert_close(outputs(policy, rows), before, **CLOSE[dtype])
                head = policy.get_output_embeddings()
                hidden = torch.ones(rows, head.in_features, dtype=head.weight.dtype)
                torch.testing.assert_close(
                    multiply(hidden, head.weight, None), head(hidden), **CLOSE[dtype]
                )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_may_be_merged_between_rollouts(folder: str, dtype: Any) -> None:
    """Into frozen weights, whose version stays the same."""
    torch.manual_seed(4)
    policy = load_policy(folder, LoRA(4, dtype=dtype), "cpu").eval()
    for _ in range(3):
        draw_adapter(policy, std=0.6)
        policy.merge_adapter()
        expected = outputs(policy, 5)
        with packed_products(policy, 5):
            torch.testing.assert_close(outputs(policy, 5), expected, **CLOSE[dtype])
        policy.unmerge_adapter()


def test_frozen_weights_are_packed_once(policy: PeftModel, monkeypatch) -> None:
    packed: list[torch.Size] = []
    pack = packing.pack
    monkeypatch.setattr(
        packing, "pack", lambda weight, rows: packed.append(weight.shape) or pack(weight, rows)
    )
    head = policy.get_output_embeddings()
    for _ in range(3):
        with torch.inference_mode(), packed_products(policy, 5) as multiply:
            outputs(policy, 5)
            multiply(torch.ones(5, head.in_features), head.weight, None)
    assert packed.count(head.weight.shape) == 1
    assert len(packed) > 3


def test_layers_are_restored_after_an_error(policy: PeftModel) -> None:
    with pytest.raises(KeyError), packed_products(policy, 5):
        raise KeyError
    assert not any("forward" in vars(layer) for layer in policy.modules())


def test_large_models_are_not_packed(policy: PeftModel, monkeypatch) -> None:
    monkeypatch.setattr(packing, "_MOST_WEIGHTS", 10)
    with packed_products(policy, 5) as multiply:
        assert not any("forward" in vars(layer) for layer in policy.modules())
        hidden, weight = torch.rand(5, 4), torch.rand(3, 4)
        assert torch.equal(multiply(hidden, weight, None), hidden @ weight.T)


def test_nothing_is_packed_on_other_devices(policy: PeftModel) -> None:
    """Where the adapter would be merged for a product that is then not packed."""
    with packed_products(policy.to("meta"), 5):
        assert not any("forward" in vars(layer) for layer in policy.modules())


def test_nothing_is_packed_under_autocast(policy: PeftModel, folder: str) -> None:
    """Where plain layers multiply in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16), packed_products(policy, 5):
        assert not any("forward" in vars(layer) for layer in policy.modules())
    given = (load_tokenizer(folder), PROMPTS, Generation(max_completion_length=4))
    rollout = sample(policy.to(torch.float32), *given)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(sample(policy, *given).completions) == len(PROMPTS)
    assert len(rollout.completions) == len(PROMPTS)


def test_the_output_layer_may_have_a_bias(folder: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.lm_head.bias = torch.nn.Parameter(torch.randn(8))
    with torch.no_grad(), packed_products(model, 5) as multiply:
        hidden = torch.rand(5, model.config.hidden_size)
        torch.testing.assert_close(
            multiply(hidden, model.lm_head.weight, model.lm_head.bias), model.lm_head(hidden)
        )
