"""Encoder-decoder policies; `test_rollouts.py` has their rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable

import peft
import pytest
import torch
from lightning_choice import LoRA, PolicyTuner, pl
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
from tuner_records import drift

from ctrlreward import Samples
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, sample

pytestmark = pytest.mark.parametrize("family", ["t5", "bart"])

# Of each family: the end, and what the decoder starts with.
SPECIAL = {"t5": (1, 0), "bart": (2, 2)}
TRANSFER = Samples(texts=[""] * 3, prefixes=[""] * 3, prompts=["abc", "cd", "f"])


@pytest.fixture
def folder(tiny_seq2seq: Callable[[str], str], family: str) -> str:
    return tiny_seq2seq(family)


@pytest.fixture
def batch() -> Samples:
    return TRANSFER


def adapted(folder: str) -> peft.PeftModel:
    """Load a policy that differs from its base model."""
    torch.manual_seed(4)
    return drift(load_policy(folder, LoRA(4, dtype="float32"), "cpu").eval())


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


def test_the_exported_adapter_is_plain_peft(tuner, folder, family, tmp_path) -> None:
    """Plain peft and transformers generate the same from it."""
    module = tuner()
    module.policy = adapted(folder)
    module.tokenizer = AutoTokenizer.from_pretrained(folder)
    module.export_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["task_type"]) == (folder, "SEQ_2_SEQ_LM")
    base = AutoModelForSeq2SeqLM.from_pretrained(folder)
    end, start = SPECIAL[family]
    base.generation_config = GenerationConfig(
        eos_token_id=end, decoder_start_token_id=start, pad_token_id=module.tokenizer.pad_token_id
    )
    inputs = module.tokenizer(["abc", "fdddd"], padding=True, return_tensors="pt")

    def greedy(model: torch.nn.Module) -> list[list[int]]:
        return model.eval().generate(**inputs, do_sample=False, max_new_tokens=12).tolist()

    untuned = greedy(base)
    tuned = greedy(peft.PeftModel.from_pretrained(base, tmp_path))
    assert tuned != untuned
    options = Generation(max_completion_length=12)
    rollout = sample(module.policy, module.tokenizer, ["abc", "fdddd"], options, 0.0)
    new = rollout.mask.shape[1]
    for ours, theirs, kept in zip(rollout.ids[:, -new:], tuned, rollout.mask, strict=True):
        length = int(kept.sum())
        assert ours[:length].tolist() == theirs[1 : 1 + length]


def test_a_decoder_without_a_start_token_is_an_error(folder, family, tmp_path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.config.decoder_start_token_id = None
    model.generation_config = GenerationConfig(eos_token_id=1)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        load_policy(str(tmp_path), LoRA(4), "cpu")
