"""Encoder-decoder policies; `test_rollouts.py` has their rollouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lightning_choice import LoRA, PolicyTuner, pl
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from ctrlreward import Samples
from ctrlreward.policy.model import load_policy

pytestmark = pytest.mark.parametrize("family", ["t5", "bart"])


@pytest.fixture
def folder(tiny_seq2seq: Callable[[str], str], family: str) -> str:
    return tiny_seq2seq(family)


@pytest.fixture
def batch() -> Samples:
    return Samples(texts=[""] * 3, prefixes=[""] * 3, prompts=["abc", "cd", "f"])


def test_three_steps_raise_a_planted_reward_of_the_completions_alone(
    tuner: Callable[..., PolicyTuner], fit: Callable[..., pl.Trainer], share, family: str
) -> None:
    module = tuner(learning_rate=0.05, num_generations=16, beta=0.0)

    def share_of_a() -> float:
        torch.manual_seed(2)
        texts = [text for text in module.complete(["abc"] * 256) if text]
        return sum(text.count("a") / len(text) for text in texts) / len(texts)

    pl.seed_everything(0, verbose=False)
    module.configure_model()
    before = share_of_a()
    fit(module, 3)
    assert share_of_a() > before + 0.1
    texts = {text for samples in share.scored for text in samples.texts}
    assert all(len(text) <= 6 and set(text) <= set("abcdef?") for text in texts)


def test_a_decoder_without_a_start_token_is_an_error(folder, family, tmp_path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.config.decoder_start_token_id = None
    model.generation_config = GenerationConfig(eos_token_id=1)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        load_policy(str(tmp_path), LoRA(4), "cpu")
