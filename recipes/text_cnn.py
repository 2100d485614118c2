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

from ctrlreward.engine.batching import pad_rows
from ctrlreward.files import whole_folder, write_whole
from ctrlreward.models.text_cnn import (
    PADDING,
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    frequent_words,
    save_text_cnn,
)
from ctrlreward.recipes.text_files import held_out, lines, plain

# What a finished folder holds.
_FILES = ("config.json", "model.safetensors", "evaluation.json")


class Sentence(NamedTuple):
    """The words of a sentence, one space apart, and the place of its label."""

    text: str
    label: int


class SentenceData(pl.LightningDataModule):
    """Sentences by label, in files of one sentence a line.

    Sentences are the same where their words are, in upper or lower case and with any white space
    between them. Of the training sentences a share is put aside to choose the best epoch by: a
    sentence is on one side only, also where it has two labels, and counts once with each. None of
    the held-out sentences is trained on.

    Args:
        train: A file for each label.
        test: The same, of sentences that nothing but the final figure sees.
        exclude: Files whose sentences are not trained on, beside those of `test`; a line may
            hold several, with tabs between them.
        validation_share: Of the training sentences, above 0 and below 1.
        batch_size: Sentences a step.
        seed: Of the split and the order.

    Raises:
        ValueError: The labels of both sets differ, the share is outside its range, a file gives
            no sentence, or fewer than two are left to be trained on.
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
        if not 0 < validation_share < 1:
            raise ValueError(
                f"validation_share = {validation_share}: give a share above 0 and below 1"
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
        barred = {sentence.text for sentence in self.sentences["test"]}
        barred |= held_out(self.exclude)
        distinct = dict.fromkeys(self._read(self.files["train"]))
        kept = [sentence for sentence in distinct if sentence.text not in barred]
        texts = list(dict.fromkeys(sentence.text for sentence in kept))
        if len(texts) < 2:
            raise ValueError(
                f"{', '.join(self.files['train'].values())} hold {len(texts)} sentences that are "
                "not held out: give two or more, one to train on and one to choose the epoch by"
            )
        random.Random(self.seed).shuffle(texts)
        share = round(self.validation_share * len(texts))
        aside = set(texts[: min(max(1, share), len(texts) - 1)])
        self.sentences["validation"] = [s for s in kept if s.text in aside]
        self.sentences["train"] = [s for s in kept if s.text not in aside]

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
            texts = [plain(line) for line in lines([file]) if line.strip()]
            if not texts:
                raise ValueError(f"{file} holds no sentence: give one a line")
            yield from (Sentence(text, label) for text in texts)


class TextCNNTrainer(pl.LightningModule):
    """Trains a `TextCNN` on `SentenceData` and writes the folder of the best epoch.

    Logs `train_loss`, `val_loss` and `val_accuracy`. The best epoch is that of the trainer's
    checkpoint callback, without one the last. The folder is what `Accuracy(classifier=...)`
    takes; `evaluation.json` in it holds `test_accuracy`. A run with `fast_dev_run` writes nothing.

    Args:
        folder: Where the model is written, in place of an earlier one; nothing else may be in it.
        min_count: Words that occur less often in the training sentences are unknown.
        embedding_size: Width of a word's vector.
        widths: Words that a filter looks at.
        filters: How many there are of each width.
        dropout: Share of the features that are dropped in training.
        learning_rate: Of Adam at the start; it falls linearly to 0 at the trainer's last step.

    Raises:
        ValueError: At the start of the training, the folder holds something else than a model.
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
        self.folder = Path(folder).expanduser()
        self.min_count = min_count
        self.embedding_size = embedding_size
        self.widths = tuple(widths)
        self.filters = filters
        self.dropout = dropout
        self.learning_rate = learning_rate

    def setup(self, stage: str) -> None:
        """Builds the network for the vocabulary and the labels of the data."""
        if stage == "fit":
            _check_free(self.folder)
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
        trial = self.trainer.fast_dev_run  # type: ignore[attr-defined]
        if trial or not self.trainer.is_global_zero:
            return
        self._load_best()
        test = self._data.sentences["test"]
        with whole_folder(self.folder) as folder:
            save_text_cnn(self.model, folder)
            classifier = TextCNNClassifier(str(folder))
            chosen = classifier.probabilities([s.text for s in test]).argmax(axis=1)
            accuracy = float(np.mean(chosen == [s.label for s in test]))
            report = json.dumps({"test_accuracy": accuracy, "test_sentences": len(test)})
            write_whole(folder / "evaluation.json", report)
        rank_zero_info(f"{self.folder}: accuracy {accuracy:.4f} on {len(test)} test sentences")

    @property
    def _data(self) -> SentenceData:
        data: SentenceData = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    def _judge(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Mean loss, and for each sentence whether the decision is right."""
        rows = [self.model.config.encode(sentence.text) for sentence in batch]
        logits = self.model(*pad_rows(rows, PADDING, self.device))
        wanted = torch.tensor([sentence.label for sentence in batch], device=self.device)
        return cross_entropy(logits, wanted), logits.argmax(dim=1) == wanted

    def _load_best(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path:
            best = torch.load(checkpoint.best_model_path, weights_only=True)
            self.load_state_dict(best["state_dict"])


def _check_free(folder: Path) -> None:
    """Makes sure that nothing but a model is lost where the folder is replaced."""
    others = sorted({path.name for path in folder.glob("*")} - set(_FILES))
    if others:
        raise ValueError(
            f"folder = {str(folder)!r} holds {others[0]}, which is no part of a TextCNN, and would "
            "be replaced: give a folder for the model alone"
        )
