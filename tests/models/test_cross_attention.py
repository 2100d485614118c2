from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

from ctrlreward.models.cross_attention import SourceAttention, attend_to_sources

SOURCES = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
SOURCE_MASK = (SOURCES != 0).long()
BOTH = pytest.mark.parametrize("family", ["pegasus", "bart"])


def pair(family: str, attention: str = "sdpa") -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model of large random weights, biases too; as it is and with its sources attended to."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=40, d_model=24, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=32, decoder_ffn_dim=32, pad_token_id=0,
        decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip
    plain = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention).eval()
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ours = deepcopy(plain)
    attend_to_sources(ours)
    return plain, ours


def logits(model: PreTrainedModel, tokens: int, masked: bool) -> torch.Tensor:
    ids = (torch.arange(2 * tokens).view(2, tokens) * 7 + 3) % 40
    with torch.inference_mode():
        output: torch.Tensor = model(
            input_ids=SOURCES,
            attention_mask=SOURCE_MASK if masked else None,
            decoder_input_ids=ids,
            use_cache=False,
        ).logits
    return output


def source_tokens_projected(model: PreTrainedModel, tokens: int) -> int:
    """Vectors of the source that go through the projections of keys and values."""
    seen: list[int] = []
    for name, module in model.named_modules():
        if "encoder_attn" in name and name.endswith(("k_proj", "v_proj")):
            module.register_forward_hook(
                lambda module, args, output: seen.append(args[0][..., 0].numel())
            )
    logits(model, tokens, masked=True)
    return sum(seen)


@BOTH
@pytest.mark.parametrize("tokens", [1, 2, 8, 9])
@pytest.mark.parametrize("masked", [True, False])
def test_scores_are_those_of_the_model_itself(family: str, tokens: int, masked: bool) -> None:
    plain, ours = pair(family)
    expected = logits(plain, tokens, masked)
    torch.testing.assert_close(logits(ours, tokens, masked), expected, atol=2e-5, rtol=1e-5)
    # The source matters, and so does its mask.
    assert (expected - logits(plain, tokens, not masked)).abs().max() > 0.01


@BOTH
def test_a_short_row_projects_no_source(family: str) -> None:
    plain, ours = pair(family)
    assert source_tokens_projected(plain, 8) == 2 * 2 * SOURCES.numel()
    assert source_tokens_projected(ours, 8) == 0
    assert source_tokens_projected(ours, 9) == source_tokens_projected(plain, 9)


@BOTH
def test_generation_with_a_cache_is_the_models_own(family: str) -> None:
    plain, ours = pair(family)
    first, second = (
        model.generate(
            SOURCES, attention_mask=SOURCE_MASK, max_new_tokens=12, do_sample=False, num_beams=2
        )
        for model in (plain, ours)
    )
    assert first.tolist() == second.tolist()


def test_other_models_stay_as_they_are() -> None:
    _, ours = pair("bart", attention="eager")
    config = AutoConfig.for_model("t5", vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1)
    t5 = AutoModelForSeq2SeqLM.from_config(config)
    attend_to_sources(t5)
    modules = [*ours.modules(), *t5.modules()]
    assert not any(isinstance(module, SourceAttention) for module in modules)
