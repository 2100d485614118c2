# /// script
# requires-python = ">=3.11"
# dependencies = ["ctrlreward[gguf]"]
#
# [tool.uv.sources]
# ctrlreward = { path = "..", editable = true }
# ///
"""Fine-tune a language model with Lightning, stop early and keep the best checkpoint by its texts.

Run `uv run examples/select_lightning.py`, or `uv run examples/select_lightning.py 60` for 60 steps.

The validation loss does not decide. Texts of held-out prompts do: their relevance, while they stay
diverse.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward import CTRLEval, Distinct, Samples
from ctrlreward.callbacks import GenerationScorer, RewardCheckpoint, RewardEarlyStopping
from ctrlreward.models import resolve

TEXTS = [
    "The food was warm, fresh and wonderful.",
    "The room was bright, and the bed was a dream.",
    "Our guide was kind and knew every stone.",
    "The concert was a joy from the first note.",
    "This book made me smile on every page.",
    "The staff were friendly and quick.",
    "The garden was lovely, with roses everywhere.",
    "The soup was rich and the bread still warm.",
]


class LanguageModel(pl.LightningModule):
    """A LoRA language model. `complete` is all that the callbacks need of it."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        base = AutoModelForCausalLM.from_pretrained(folder)
        self.model = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear"))

    def training_step(self, batch: Sequence[str], _: int) -> torch.Tensor:
        """Return the loss of a batch of texts."""
        tokens = self.tokenizer(list(batch), return_tensors="pt", padding=True).to(self.device)
        labels = tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)
        return self.model(**tokens, labels=labels).loss

    def validation_step(self, batch: Sequence[str], _: int) -> None:
        """Log the validation loss, as usual; it decides nothing here."""
        self.log("val_loss", self.training_step(batch, 0), batch_size=len(batch))

    def complete(self, prompts: list[str]) -> list[str]:
        """Return a completion of each prompt."""
        tokens = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.device)
        written = self.model.generate(**tokens, max_new_tokens=16, do_sample=True)
        new = written[:, tokens["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(new, skip_special_tokens=True)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the adapter."""
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), lr=1e-3)


def main(steps: str = "20") -> None:
    """Train, and print the selected step with the reason."""
    pl.seed_everything(0)
    held_out = ["The hotel", "This jacket", "Our dinner", "The film", "The tour", "The band"]
    prompts = Samples(held_out, prefixes=held_out, labels=["positive"] * len(held_out))
    scores = {
        "relevance": CTRLEval(
            "smollm2-135m", task="sentiment", aspects="attribute_relevance", evaluators=9
        ),
        "distinct_2": Distinct()["distinct_2"],
    }
    checkpoint = RewardCheckpoint(
        "score/relevance",
        dirpath="runs/select_lightning/checkpoints",
        constraints={"score/distinct_2": (0.8, None)},
    )
    trainer = pl.Trainer(
        max_steps=int(steps),
        max_epochs=-1,
        val_check_interval=5,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        default_root_dir="runs/select_lightning",
        callbacks=[
            GenerationScorer(scores, prompts),
            RewardEarlyStopping("score/relevance", patience=3),
            checkpoint,
        ],
    )
    model = LanguageModel(str(resolve("smollm2-135m")))
    train, validation = TEXTS[:6], TEXTS[6:]
    trainer.fit(model, DataLoader(train, 3, shuffle=True), DataLoader(validation, 2))
    print(f"selected step {checkpoint.selected_step}: {checkpoint.best_model_path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
