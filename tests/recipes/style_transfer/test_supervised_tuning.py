"""Supervised fine-tuning: its loss, what it learns, and its adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning_choice import quiet_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward import Distinct, Reward
from ctrlreward.policy import Generation, LoRA, OptimizerConfig, PolicyTuner
from ctrlreward.recipes.style_transfer import ScoringModels, Sentences
from ctrlreward.recipes.style_transfer.pseudo_pairs import PseudoPairs
from ctrlreward.recipes.style_transfer.supervised_tuning import PairData, SupervisedTuner

LETTERS = "\n abcdefghijklmnopqrstuvwxyz.:"
GENERATION = Generation(max_completion_length=12, eval_temperature=0.0, stop="\n")


@pytest.fixture
def data(tmp_path: Path) -> Callable[[], PairData]:
    (tmp_path / "pairs.jsonl").write_text(
        "".join(
            json.dumps({"source": f"{a} cold", "label": "sweet", "text": f"{a} warm"}) + "\n"
            for a in "abcdef"
        )
    )
    sentences = Sentences({"sour": "none", "sweet": "none"}, "{source_style}: {source}\n{style}:")
    pairs = PseudoPairs(sentences, ScoringModels("none"), str(tmp_path / "pairs.jsonl"))
    return lambda: PairData(pairs, batch_size=4, steps=60, seed=3)


def test_the_loss_is_that_of_transformers(tiny_llama, data, tmp_path: Path) -> None:
    """Each pair on its own, through the model's own loss on the completion's tokens."""
    folder = tiny_llama(LETTERS)
    module = SupervisedTuner(
        str(tmp_path / "adapter"), folder, GENERATION, lora=LoRA(dtype="float32")
    )
    module.configure_model()
    module.log = lambda *_, **__: None  # type: ignore[method-assign]
    loaded = data()
    loaded.setup("fit")
    batch = next(iter(loaded.train_dataloader()))
    model, tokenizer = (
        kind.from_pretrained(folder) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    total, count = 0.0, 0
    for prompt, text in zip(batch.prompts, batch.references, strict=True):
        before = tokenizer(prompt, add_special_tokens=False).input_ids
        after = tokenizer(f" {text}\n", add_special_tokens=False).input_ids
        labels = torch.tensor([[-100] * len(before) + after])
        loss = model(input_ids=torch.tensor([before + after]), labels=labels).loss
        total, count = total + loss.item() * len(after), count + len(after)
    assert module.training_step(batch, 0).item() == pytest.approx(total / count, rel=1e-5)


def test_it_learns_and_a_policy_goes_on_from_its_adapter(tiny_llama, data, tmp_path: Path) -> None:
    torch.manual_seed(0)  # of a new adapter
    model, folder = tiny_llama(LETTERS), str(tmp_path / "adapter")
    optimizer = OptimizerConfig(learning_rate=0.02, warmup_steps=3)
    lora = LoRA(r=8, lora_dropout=0.1, dtype="float32")
    module = SupervisedTuner(folder, model, GENERATION, optimizer, lora)
    limits = {"max_epochs": 1, "max_steps": 60, "limit_val_batches": 0}
    quiet_trainer(**limits, default_root_dir=tmp_path).fit(module, data())
    prompts = ["sour: a cold\nsweet:", "sweet: b warm\nsour:"]
    completions = module.complete(prompts)
    assert [text.split()[-1][:4] for text in completions] == ["warm", "cold"]
    reward = Reward({"diversity": Distinct()["distinct_1"]})
    adapter = LoRA(adapter=folder, dtype="float32")
    policy = PolicyTuner(model, reward, generation=GENERATION, lora=adapter)
    assert policy.complete(prompts) == completions
