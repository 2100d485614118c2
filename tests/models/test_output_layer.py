from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import SHAPE, SHAPES
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from ctrlreward.models import output_layer
from ctrlreward.models.output_layer import (
    check_output_layer,
    states_and_output,
    token_log_probs,
)

IDS = torch.tensor([[3, 14, 15, 9, 26], [5, 35, 8, 9, 7]])


def tiny(model_type: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    shape = SHAPES.get(model_type, SHAPE)
    config = AutoConfig.for_model(model_type, **{**shape, "vocab_size": 40, **changes})
    seq2seq = config.is_encoder_decoder
    auto_class = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
    model: PreTrainedModel = auto_class.from_config(config).eval()
    torch.nn.init.normal_(model.get_output_embeddings().weight)  # so that tokens differ
    return model


FAMILIES = {
    "llama": {},
    "gpt2": {},
    "gemma2": {"final_logit_softcapping": 3.0},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 8.0},
    "bart": {},
    "pegasus": {},
    "t5": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_the_models_own_logits(family: str) -> None:
    model = tiny(family, **FAMILIES[family])
    inputs: dict[str, Tensor] = {"input_ids": IDS}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS
    if family in ("bart", "pegasus"):
        model.final_logits_bias.normal_()  # type: ignore[union-attr]
    with torch.inference_mode():
        expected = model(**inputs).logits.log_softmax(dim=-1).flatten(0, 1)
        hidden, _ = states_and_output(model, **inputs)
        assert hidden.shape == (2, 5, 32)
        check_output_layer(model)
        places = torch.arange(10).repeat_interleave(40)
        tokens = torch.arange(40).repeat(10)
        found = token_log_probs(model, hidden.flatten(0, 1), places, tokens)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected[places, tokens], atol=1e-5, rtol=0)
    assert expected.std() > 0.1  # the tokens are told apart


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 39)), max_size=20),
    st.sampled_from([1, 3, 7, 2**10]),
    st.sampled_from([1, 7, 40, 2**10]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_blocks_and_temperature(
    wanted: list[tuple[int, int]], states_at_once: int, words_at_once: int, temperature: float
) -> None:
    model = tiny("llama")
    hidden = torch.randn(7, 32)
    states, tokens = (torch.tensor([pair[k] for pair in wanted]).long() for k in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_layer, "MIN_WORDS", words_at_once)
        block = states_at_once * words_at_once
        found = token_log_probs(model, hidden, states, tokens, temperature, block)
    logits = model.get_output_embeddings()(hidden) / temperature
    torch.testing.assert_close(found, logits.log_softmax(dim=-1)[states, tokens])


def test_gradients_reach_the_hidden_states_and_the_output_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output_layer, "MIN_WORDS", 15)
    monkeypatch.setattr(output_layer, "CPU_BLOCK", 30)
    model = tiny("llama")
    weight = model.get_output_embeddings().weight
    hidden = torch.randn(5, 32, requires_grad=True)
    states, tokens = torch.tensor([4, 0, 0, 2]), torch.tensor([7, 7, 1, 39])
    found = token_log_probs(model, hidden, states, tokens).sum()
    expected = (hidden @ weight.T).log_softmax(dim=-1)[states, tokens].sum()
    for ours, theirs in zip(
        torch.autograd.grad(found, [hidden, weight]),
        torch.autograd.grad(expected, [hidden, weight]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


class Shifted(GPT2LMHeadModel):
    """Changes its logits in a way of its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits * 1.5
        return outputs


def test_a_model_with_a_way_of_its_own_raises() -> None:
    model = Shifted(tiny("gpt2").config)
    torch.nn.init.normal_(model.get_output_embeddings().weight)
    with pytest.raises(ValueError, match="gpt2"):
        check_output_layer(model.eval())


def test_the_output_layer_is_given_no_rows() -> None:
    model = tiny("llama")
    seen: list[tuple[int, ...]] = []
    model.get_output_embeddings().register_forward_hook(
        lambda layer, args, output: seen.append(tuple(output.shape))
    )
    assert states_and_output(model, input_ids=IDS)[0].shape == (2, 5, 32)
    assert seen == [(0, 5, 40)]
