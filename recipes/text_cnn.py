"""Style transfer: training the classifier that judges whether a text has the wanted style.

The pieces of `configs/style_transfer/text_cnn_*.yaml`: sentences by label, and the training of
Kim's (2014) TextCNN. Copy this file to change them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ctrlreward.models.text_cnn import (
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    frequent_words,
    save_text_cnn,
)
from ctrlreward.models.texts import pad_rows
from ctrlreward.models.words import split_words


class Sentence(NamedTuple):
    """A sentence and the place of its label."""

    text: str
    label: int


class SentenceData(pl.LightningDataModule):
    """Sentences by label, in files of one sentence a line.

    Of the training files a share is put aside to choose the best epoch by. Repeated sentences
    count once, so that none is on both sides, and none of the held-out sentences is trained on.

    Args:
        train: A file for each label.
        test: The same, of sentences that nothing but the final figure sees.
        exclude: Files whose sentences are not trained on, beside those of `test`; a line may
            hold several, with tabs between them.
        validation_share: Of the training sentences, above 0 and below 1.
        batch_size: Sentences a step.
        seed: Of the split and the order.

    Raises:
        ValueError: The labels of both sets differ, or a file gives no sentence.
    """

    def __init__(
        self,
        train: dict[str, str],
        test: dict[str, str],
        exclude: Sequence[str] = (),
        validation_share: float = 0.05,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if train.keys() != test.keys():
            raise ValueError(
                f"train has the labels {', '.join(train)} and test {', '.join(test)}: "
                "give files of the same labels"
            )
        self.files = {"train": train, "test": test}
        self.exclude = exclude
        self.validation_share = validation_share
        self.batch_size = batch_size
        self.seed = seed
        self.labels = tuple(train)
        self.sentences: dict[str, list[Sentence]] = {}

    def setup(self, stage: str) -> None:
        """Reads the files, leaves out what is held out, and splits the rest."""
        self.sentences["test"] = list(self._read(self.files["test"]))
        barred = {_same(sentence.text) for sentence in self.sentences["test"]}
        for file in self.exclude:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
            barred.update(_same(column) for line in lines for column in line.split("\t"))
        distinct = dict.fromkeys(self._read(self.files["train"]))
        kept = [sentence for sentence in distinct if _same(sentence.text) not in barred]
        random.Random(self.seed).shuffle(kept)
        aside = max(1, round(self.validation_share * len(kept)))
        self.sentences["validation"], self.sentences["train"] = kept[:aside], kept[aside:]

    def train_dataloader(self) -> DataLoader[Sentence]:
        """Lists of `batch_size` sentences, in a new order each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Sentence]:
        """Lists of `batch_size` sentences that were put aside."""
        return self._loader("validation", shuffle=False)

    def _loader(self, split: str, shuffle: bool) -> DataLoader[Sentence]:
        return DataLoader(
            self.sentences[split],  # type: ignore[arg-type]
            self.batch_size,
            shuffle,
            collate_fn=list,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def _read(self, files: Mapping[str, str]) -> Iterator[Sentence]:
        for label, file in enumerate(files.values()):
            lines = Path(file).read_text(encoding="utf-8").splitlines()
            texts = [line for line in lines if line.strip()]
            if not texts:
                raise ValueError(f"{file} holds no sentence: give one a line")
            yield from (Sentence(text, label) for text in texts)


class TextCNNTrainer(pl.LightningModule):
    """Trains a `TextCNN` on `SentenceData` and writes the folder of the best epoch.

    Logs `train_loss`, `val_loss` and `val_accuracy`. The best epoch is that of the trainer's
    checkpoint callback, without one the last. The folder is what `Accuracy(classifier=...)`
    takes; `evaluation.json` in it holds `test_accuracy`.

    Args:
        folder: Where the model is written.
        min_count: Words that occur less often in the training sentences are unknown.
        embedding_size: Width of a word's vector.
        widths: Words that a filter looks at.
        filters: How many there are of each width.
        dropout: Share of the features that are dropped in training.
        learning_rate: Of Adam at the start; it falls linearly to 0 at the trainer's last step.
    """

    def __init__(
        self,
        folder: str,
        min_count: int = 2,
        embedding_size: int = 64,
        widths: Sequence[int] = (3, 4, 5),
        filters: int = 128,
        dropout: float = 0.5,
        learning_rate: float = 2e-3,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.min_count = min_count
        self.embedding_size = embedding_size
        self.widths = tuple(widths)
        self.filters = filters
        self.dropout = dropout
        self.learning_rate = learning_rate

    def setup(self, stage: str) -> None:
        """Builds the network for the vocabulary and the labels of the data."""
        data = self._data
        words = frequent_words((s.text for s in data.sentences["train"]), self.min_count)
        self.model = TextCNN(
            TextCNNConfig(
                words, data.labels, self.embedding_size, self.widths, self.filters, self.dropout
            )
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Adam, with a rate that falls at every step."""
        optimizer = torch.optim.Adam(self.model.parameters(), self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": falling, "interval": "step"},
        }

    def training_step(self, batch: list[Sentence], batch_idx: int) -> Tensor:
        """Cross-entropy of the labels."""
        loss, _ = self._judge(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: list[Sentence], batch_idx: int) -> None:
        """Logs cross-entropy and the share of right decisions."""
        loss, right = self._judge(batch)
        values = {"val_loss": loss, "val_accuracy": right.float().mean()}
        self.log_dict(values, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def on_fit_end(self) -> None:
        """Writes the best epoch's folder, then reads it as its users do and judges the test."""
        if not self.trainer.is_global_zero:
            return
        self._load_best()
        save_text_cnn(self.model, self.folder)
        test = self._data.sentences["test"]
        chosen = TextCNNClassifier(self.folder).probabilities([s.text for s in test]).argmax(1)
        accuracy = float(np.mean(chosen == [s.label for s in test]))
        report = json.dumps({"test_accuracy": accuracy, "test_sentences": len(test)})
        (Path(self.folder).expanduser() / "evaluation.json").write_text(report, encoding="utf-8")
        rank_zero_info(f"{self.folder}: accuracy {accuracy:.4f} on {len(test)} test sentences")

    @property
    def _data(self) -> SentenceData:
        data: SentenceData = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    def _judge(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Mean loss, and for each sentence whether the decision is right."""
        rows = [self.model.config.encode(sentence.text) for sentence in batch]
        logits = self.model(*pad_rows(rows, 0, self.device))
        wanted = torch.tensor([sentence.label for sentence in batch], device=self.device)
        return cross_entropy(logits, wanted), logits.argmax(dim=1) == wanted

    def _load_best(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path:
            best = torch.load(checkpoint.best_model_path, weights_only=True)
            self.load_state_dict(best["state_dict"])


def _same(text: str) -> str:
    """Equal for texts that are the same words."""
    return " ".join(split_words(text))
