"""Fine-tuning of a pretrained transformer encoder as a classifier of sentences.

`configs/style_transfer/classifier_yelp.yaml` uses this class. Copy this file to change it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ctrlreward.models.batching import pad_rows
from ctrlreward.models.control_tokens import text_reader
from ctrlreward.models.loading import load_config, load_tokenizer
from ctrlreward.models.sources import resolve
from ctrlreward.models.tokenization import max_tokens
from ctrlreward.recipes.scoring_models.text_cnn import Sentence, SentenceClassifierTrainer
from ctrlreward.scorers import Accuracy

# Sentences of a batch that are padded to one length. Larger groups pad more: with 64, a training
# step on Yelp's sentences takes a quarter more time on a CPU.
_GROUP = 16
# Tokens of a sentence in training; the trained model reads as many as the encoder can.
_MAX_TOKENS = 64


class SequenceClassifierTrainer(SentenceClassifierTrainer):
    """Trainer of a transformer encoder on `SentenceData`; see `ModelTrainer`.

    All weights are trained; the classification head is new. The folder is plain transformers, and
    `Accuracy(folder)` loads it; it has the labels of the data. `evaluation.json` has
    `test_accuracy`, the mean of `Accuracy` over the test sentences.

    Args:
        folder: Folder of the trained model.
        model: Encoder to start from: local folder, Hugging Face id or short name.
        learning_rate: Peak learning rate of AdamW, after linear warm-up over the first tenth of the
            steps and before linear decay to 0.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def __init__(self, folder: str, model: str = "minilm-l6", learning_rate: float = 1e-4) -> None:
        super().__init__(folder)
        self.encoder, self.learning_rate = model, learning_rate

    def setup(self, stage: str) -> None:
        """Load the encoder and its tokenizer, with a head for the labels of the data."""
        self.check_replaceable(stage)
        config = load_config(self.encoder)
        config.id2label = dict(enumerate(self.data.labels))
        config.label2id = {label: i for i, label in enumerate(self.data.labels)}
        self.tokenizer = load_tokenizer(self.encoder)
        config.pad_token_id = self.tokenizer.pad_token_id  # which the head of a decoder skips
        self.limit = min(_MAX_TOKENS, max_tokens(self.tokenizer, config))
        self.network = AutoModelForSequenceClassification.from_pretrained(
            resolve(self.encoder),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # the head of a classifier with other labels
        ).train()  # Lightning does not change the mode

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return self.warmed_adamw(self.learning_rate, 0.01, 1 / 10)

    def write_model(self, folder: Path) -> dict[str, Any]:
        labels, test = self.data.labels, self.data.sentences["test"]
        self.network.save_pretrained(folder)
        # Loaded anew: the one in use keeps its truncation and would write it.
        load_tokenizer(self.encoder).save_pretrained(folder)
        scorer = Accuracy(str(folder), device=str(self.device))
        scores = scorer.score([s.text for s in test], labels=[labels[s.label] for s in test])
        scorer.release()
        accuracy = float(scores["accuracy"].mean())
        return {"test_accuracy": accuracy, "test_sentences": len(test)}

    def _loss_and_hits(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the hits, of sentences in the order of their length."""
        texts = [sentence.text for sentence in batch]
        reader = text_reader(self.tokenizer, texts)
        rows = reader(texts, truncation=True, max_length=self.limit).input_ids
        encoded = [tuple(row) for row in rows]
        order = sorted(range(len(batch)), key=lambda i: len(encoded[i]))
        labels = torch.tensor([batch[i].label for i in order], device=self.device)
        parts = []
        for start in range(0, len(order), _GROUP):
            group = [encoded[i] for i in order[start : start + _GROUP]]
            ids, mask = pad_rows(group, self.tokenizer.pad_token_id or 0, self.device)
            parts.append(self.network(input_ids=ids, attention_mask=mask).logits)
        logits = torch.cat(parts)
        return cross_entropy(logits, labels), logits.argmax(dim=1) == labels
