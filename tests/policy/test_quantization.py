"""Quantised base weights, on the CPU, where bitsandbytes is installed."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from lightning_choice import LoRA
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from tuner_records import drift

from ctrlreward.models.dtypes import quantization_config
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, log_probs, sample

kinds = pytest.mark.parametrize("quantization", ["nf4", "int8"])


@pytest.fixture
def bitsandbytes():
    return pytest.importorskip("bitsandbytes", exc_type=ImportError)


@pytest.fixture
def wide(folder: str, tmp_path: Path) -> str:
    """Folder of a Llama whose layers are as wide as a block of quantised weights."""
    path = str(tmp_path / "wide")
    AutoTokenizer.from_pretrained(folder).save_pretrained(path)
    sizes = {"vocab_size": 8, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, initializer_range=0.2, eos_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(path)
    return path


@kinds
def test_a_quantised_policy_samples_learns_and_exports(
    bitsandbytes, tuner, fit, wide: str, tmp_path: Path, quantization: str
) -> None:
    module = tuner(model=wide, quantization=quantization, learning_rate=0.05)
    module.configure_model()
    weight = module.policy.base_model.model.model.layers[0].mlp.up_proj.base_layer.weight
    bits = {"nf4": 4, "int8": 8}[quantization]
    assert weight.numel() * weight.element_size() * 8 == bits * 64 * 128
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    trainer = fit(module, 3)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad
        assert parameter.dtype == torch.float32 or not parameter.requires_grad

    path = str(tmp_path / "at3.ckpt")
    trainer.save_checkpoint(path)
    resumed = tuner(model=wide, quantization=quantization, learning_rate=0.05)
    fit(resumed, 4, path)
    assert resumed.global_step == 4

    module.export_adapter(tmp_path / "adapter")
    # The same rounded weights as plain numbers, and the adapter on top.
    config = quantization_config(quantization, torch.float32, "quantization")
    base = AutoModelForCausalLM.from_pretrained(wide, quantization_config=config).dequantize()
    plain = peft.PeftModel.from_pretrained(base.float(), tmp_path / "adapter").eval()
    ids = torch.tensor([[2, 3, 4, 5, 6]])
    with torch.no_grad():
        exact = plain(ids).logits
        ours = module.policy.eval()(ids).logits
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


@kinds
def test_gradients_are_those_of_the_dequantised_weights(bitsandbytes, wide, quantization) -> None:
    """Also after sampling in eval mode, for which bitsandbytes has other kernels on the CPU."""
    torch.manual_seed(0)
    policy = load_policy(wide, LoRA(4, quantization=quantization), "cpu")
    torch.manual_seed(0)
    plain = load_policy(wide, LoRA(4), "cpu")
    layers = dict(plain.named_modules())
    for name, layer in policy.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            value = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
            layers[name].weight.data.copy_(value)
        elif isinstance(layer, bitsandbytes.nn.Linear8bitLt):
            layers[name].weight.data.copy_(weight.data.float() * weight.SCB[:, None] / 127)
    drift(policy, 1)
    drift(plain, 1)
    options = Generation(max_completion_length=6)
    rollout = sample(policy.eval(), load_tokenizer(wide), ["ab", "cdef"] * 3, options)
    with torch.no_grad():
        evaluated = log_probs(policy, rollout, 1.0)
    ours, exact = (log_probs(model.train(), rollout, 1.0) for model in (policy, plain))
    torch.testing.assert_close(ours, exact, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(evaluated, ours, rtol=1e-3, atol=1e-4)
    gradients = []
    for model, values in ((policy, ours), (plain, exact)):
        values.sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert all(g.abs().max() > 1e-3 for g in gradients[1].values())
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-3)
