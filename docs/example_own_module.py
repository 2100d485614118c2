"""Your own LightningModule, scored while it trains: it only needs a method `complete`."""

import pytorch_lightning as pl  # or: import lightning as pl
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward import CTRLEval, Samples

# or: from ctrlreward.lightning import GenerationScorer, RewardEarlyStopping
from ctrlreward.callbacks import GenerationScorer, RewardEarlyStopping
from ctrlreward.models import resolve

REVIEWS = ["The soup was warm and rich.", "Lovely staff, we felt at home.", "I adored the garden."]


class Writer(pl.LightningModule):
    def __init__(self):
        super().__init__()
        folder = resolve("smollm2-135m")  # or a local folder or Hugging Face id
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder).train()

    def training_step(self, ids, batch_idx):
        return self.model(ids, labels=ids).loss

    def validation_step(self, batch, batch_idx): ...

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-5)

    def complete(self, prompts):
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.device)
        ids = self.model.generate(**batch, max_new_tokens=16, do_sample=True)
        new = ids[:, batch.input_ids.shape[1] :]
        return self.tokenizer.batch_decode(new, skip_special_tokens=True)


if __name__ == "__main__":
    relevance = CTRLEval(aspects="attribute_relevance")
    held_out = Samples(texts=["The hotel", "Our guide", "This book"] * 2, labels=["positive"] * 6)
    scorer = GenerationScorer({"attribute_relevance": relevance}, held_out)
    stopper = RewardEarlyStopping("score/attribute_relevance", patience=2, verbose=True)
    trainer = pl.Trainer(max_epochs=4, callbacks=[scorer, stopper], default_root_dir="runs/own")
    module = Writer()
    train = module.tokenizer(REVIEWS, return_tensors="pt", padding=True).input_ids
    trainer.fit(module, torch.utils.data.DataLoader(train), torch.utils.data.DataLoader([0]))
    print({name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()})
