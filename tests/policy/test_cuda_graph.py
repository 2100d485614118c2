"""Decoding by fixed steps: the cache, the mask and the loop, with a stand-in for the graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning_choice import LoRA
from peft import PeftModel
from torch import Tensor
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel
from tuner_records import drift

from ctrlreward.policy import cuda_graph, rollouts
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, sample
from ctrlreward.weights.loading import load_tokenizer

PROMPTS = ["ab", "f", "ab", "abcdef", "f", "ab"]


class Replayed:
    """Stand-in for a graph: a replay runs the step on the buffers that it was recorded with."""

    def __init__(self, step: Callable[[], Tensor], wrong: bool = False) -> None:
        self.step, self.wrong, self.replays = step, wrong, 0
        self.states = torch.empty_like(step())

    def replay(self) -> None:
        self.replays += 1
        self.states.copy_(self.step())
        if self.wrong:
            self.states.add_(1.0)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    graphs: list[Replayed] = []

    def record(step: Callable[[], Tensor], index: int) -> tuple[Replayed, Tensor]:
        graphs.append(Replayed(step))
        return graphs[-1], graphs[-1].states

    monkeypatch.setattr(cuda_graph, "_record", record)
    monkeypatch.setattr(cuda_graph, "_checked", set())
    monkeypatch.setattr(cuda_graph, "_not_captured", set())
    monkeypatch.setattr(rollouts, "has_fixed_steps", lambda *_: True)
    return graphs


def adapted(folder: str | Path) -> PeftModel:
    torch.manual_seed(4)
    return drift(load_policy(str(folder), LoRA(4, dtype="float32"), "cpu").eval())


@pytest.fixture(params=["llama", "gpt2"])
def place(request: pytest.FixtureRequest, folder: str, tmp_path: Path) -> str:
    """Folder of a policy with rotary, and of one with learned positions."""
    if request.param == "llama":
        return folder
    tokenizer = load_tokenizer(folder)
    torch.manual_seed(2)
    sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), eos_token_id=0, bos_token_id=0, **sizes)
    ).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def texts(place: str, policy: PeftModel, temperature: float, graph: bool) -> Tensor:
    torch.manual_seed(3)
    options = Generation(max_completion_length=12, cuda_graph=graph)
    return sample(policy, load_tokenizer(place), PROMPTS, options, temperature).ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fixed_steps_sample_the_same_tokens(place, recorded, temperature) -> None:
    policy = adapted(place)
    expected = texts(place, policy, temperature, graph=False)
    assert not recorded
    torch.testing.assert_close(texts(place, policy, temperature, graph=True), expected)
    steps = expected.shape[1] - max(map(len, PROMPTS)) - 1  # the first token is of the prompts
    assert steps > 1
    assert recorded[0].replays == steps  # all but the first step, and the check
    texts(place, policy, temperature, graph=True)
    assert recorded[1].replays == steps - 1  # a kind of model is checked once


def test_a_wrong_graph_is_not_used(folder, recorded, monkeypatch, caplog) -> None:
    def wrong(step: Callable[[], Tensor], index: int) -> tuple[Replayed, Tensor]:
        graph = Replayed(step, wrong=True)
        return graph, graph.states

    monkeypatch.setattr(cuda_graph, "_record", wrong)
    policy = adapted(folder)
    with caplog.at_level(logging.WARNING):
        found = texts(folder, policy, 1.0, graph=True)
    torch.testing.assert_close(found, texts(folder, policy, 1.0, graph=False))
    assert "LlamaConfig decodes without a CUDA graph, whose first states differ" in caplog.text


def test_a_step_that_cannot_be_recorded_runs_without_a_graph(
    folder: str,
    recorded: list[Replayed],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "_record", refuse)
    policy = adapted(folder)
    with caplog.at_level(logging.WARNING):
        found = [texts(folder, policy, 1.0, graph=True) for _ in range(2)]
    for ids in found:
        torch.testing.assert_close(ids, texts(folder, policy, 1.0, graph=False))
    assert caplog.text.count("operation not permitted") == 1


def test_sliding_windows_and_the_cpu_decode_as_before(folder: str) -> None:
    policy = adapted(folder)
    cache = policy(torch.tensor([[1, 2]]), use_cache=True).past_key_values
    assert cuda_graph.has_fixed_steps(policy, cache, 12, "cuda")
    assert not cuda_graph.has_fixed_steps(policy, cache, 12, "cpu")
    assert not cuda_graph.has_fixed_steps(policy, cache, 7, "cuda")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    config = Gemma3TextConfig(vocab_size=32, num_attention_heads=2, num_key_value_heads=1, **sizes)
    sliding = Gemma3ForCausalLM(config)
    cache = sliding(torch.tensor([[1, 2]]), use_cache=True).past_key_values
    assert not cuda_graph.has_fixed_steps(sliding, cache, 12, "cuda")
