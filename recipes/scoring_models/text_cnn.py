"""Training of Kim's (2014) TextCNN, the style classifier of style transfer.

`configs/style_transfer/text_cnn_*.yaml` use these classes. Copy this file to change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ctrlreward.engine.batching import pad_rows
from ctrlreward.models.text_cnn import (
    PADDING,
    TextCNN,
    TextCNNClassifier,
    TextCNNConfig,
    save_text_cnn,
)
from ctrlreward.recipes.scoring_models.model_trainer import ModelTrainer, check_share, split_off
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines
from ctrlreward.text.words import split_words


class Sentence(NamedTuple):
    """A labelled sentence.

    Attributes:
        text: In `SentenceData`, lower-cased words that are separated by single spaces.
        label: Index of the label.
    """

    text: str
    label: int


class LabelledSentences(pl.LightningDataModule):
    """Base of data for `SentenceClassifierTrainer`; a subclass fills `sentences` in `setup`.

    Args:
        labels: Names of the labels, by index.
        validation_share: Share of the training sentences for validation, above 0 and below 1.
        batch_size: Sentences per batch.
        seed: Seed of the split and of the order.

    Attributes:
        sentences: Sentences of `"train"`, `"validation"` and `"test"`.

    Raises:
        ValueError: The share is out of range.
    """

    def __init__(
        self, labels: Sequence[str], validation_share: float, batch_size: int, seed: int
    ) -> None:
        super().__init__()
        self.labels = tuple(labels)
        self.validation_share = check_share(validation_share)
        self.batch_size = batch_size
        self.seed = seed
        self.sentences: dict[str, list[Sentence]] = {}

    def train_dataloader(self) -> DataLoader[Sentence]:
        """Return batches as lists of sentences, in a new order each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Sentence]:
        """Return batches as lists of validation sentences, in a fixed order."""
        return self._loader("validation", shuffle=False)

    def _loader(self, split: str, shuffle: bool) -> DataLoader[Sentence]:
        return DataLoader(
            self.sentences[split],  # type: ignore[arg-type]
            self.batch_size,
            shuffle,
            collate_fn=list,
            generator=torch.Generator().manual_seed(self.seed),
        )


class SentenceData(LabelledSentences):
    """Labelled sentences from files of one sentence per line.

    Sentences that differ only in case and white space count as one. A share of the training
    sentences is set aside for validation, to choose the best epoch. A sentence with two labels
    counts once with each, and both are in the same split. Held-out sentences are never trained on.

    Args:
        train: Label → file of training sentences.
        test: Label → file of test sentences, used only for the final accuracy.
        exclude: Files of further held-out sentences; a line may contain several, separated by tabs.
        validation_share: Share of the training sentences for validation, above 0 and below 1.
        batch_size: Sentences per batch.
        seed: Seed of the split and of the order.

    Raises:
        ValueError: `train` and `test` have different labels, the share is out of range, a file
            contains no sentence, or fewer than two sentences are left for training and validation.
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
        super().__init__([*train], validation_share, batch_size, seed)
        if train.keys() != test.keys():
            raise ValueError(
                "train and test must have the same labels, got "
                f"{', '.join(train)} and {', '.join(test)}"
            )
        self.files = {"train": train, "test": test}
        self.exclude = exclude

    def setup(self, stage: str) -> None:
        """Read the files, drop held-out sentences, and split the others."""
        self.sentences["test"] = list(self._read(self.files["test"]))
        held_out = {sentence.text for sentence in self.sentences["test"]}
        held_out |= read_held_out(self.exclude)
        distinct = dict.fromkeys(self._read(self.files["train"]))
        kept = [sentence for sentence in distinct if sentence.text not in held_out]
        texts = list(dict.fromkeys(sentence.text for sentence in kept))
        files = list(self.files["train"].values())
        validation = set(split_off(texts, self.validation_share, self.seed, files)[1])
        self.sentences["validation"] = [s for s in kept if s.text in validation]
        self.sentences["train"] = [s for s in kept if s.text not in validation]

    def _read(self, files: Mapping[str, str]) -> Iterator[Sentence]:
        for label, file in enumerate(files.values()):
            texts = [matching_key(line) for line in read_lines([file]) if line.strip()]
            if not texts:
                raise ValueError(f"{file} has no sentences, must have one per line")
            yield from (Sentence(text, label) for text in texts)


class SentenceClassifierTrainer(ModelTrainer[LabelledSentences]):
    """Steps of a classifier of sentences; a subclass has the network and writes its folder."""

    def training_step(self, batch: list[Sentence], batch_idx: int) -> Tensor:
        """Return the cross-entropy and log it as `train_loss`."""
        loss, _ = self._loss_and_hits(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: list[Sentence], batch_idx: int) -> None:
        """Log the cross-entropy as `val_loss`, and `val_accuracy`."""
        loss, hits = self._loss_and_hits(batch)
        values = {"val_loss": loss, "val_accuracy": hits.float().mean()}
        self.log_dict(values, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def _loss_and_hits(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and for each sentence whether it is classified correctly."""
        raise NotImplementedError


class TextCNNTrainer(SentenceClassifierTrainer):
    """Trainer of a `TextCNN` on `SentenceData`, which writes the model of the best epoch.

    Logs `train_loss`, `val_loss` and `val_accuracy`. The best epoch is chosen by the trainer's
    `ModelCheckpoint`; without one, it is the last. `Accuracy(...)` loads the folder;
    `evaluation.json` in it contains `test_accuracy`. With `fast_dev_run`, nothing is written.

    Args:
        folder: Folder of the trained model. An earlier model in it is replaced; a folder with other
            files is an error.
        min_count: Words that occur less often in the training sentences are unknown words.
        embedding_size: Size of a word embedding.
        widths: Widths of the filters, in words.
        filters: Number of filters of each width.
        dropout: Dropout probability of the features.
        learning_rate: Initial learning rate of Adam, with linear decay to 0 at the last step.

    Raises:
        ValueError: At the start of training, the folder contains something other than a model.
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
        super().__init__(folder)
        self.min_count = min_count
        self.embedding_size = embedding_size
        self.widths = tuple(widths)
        self.filters = filters
        self.dropout = dropout
        self.learning_rate = learning_rate

    def setup(self, stage: str) -> None:
        """Build the network for the vocabulary and the labels of the data."""
        if stage == "fit":
            self.check_replaceable()
        data = self.data
        words = frequent_words((s.text for s in data.sentences["train"]), self.min_count)
        self.model = TextCNN(
            TextCNNConfig(
                words, data.labels, self.embedding_size, self.widths, self.filters, self.dropout
            )
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return Adam with linear decay."""
        optimizer = torch.optim.Adam(self.model.parameters(), self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    def write_model(self, folder: Path) -> dict[str, Any]:
        """Write the model, load it as `Accuracy` does, and test it."""
        save_text_cnn(self.model, folder)
        test = self.data.sentences["test"]
        classifier = TextCNNClassifier(str(folder))
        predicted = classifier.probabilities([s.text for s in test]).argmax(axis=1)
        accuracy = float(np.mean(predicted == [s.label for s in test]))
        return {"test_accuracy": accuracy, "test_sentences": len(test)}

    def _loss_and_hits(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and for each sentence whether it is classified correctly."""
        rows = [self.model.config.encode(sentence.text) for sentence in batch]
        logits = self.model(*pad_rows(rows, PADDING, self.device))
        labels = torch.tensor([sentence.label for sentence in batch], device=self.device)
        return cross_entropy(logits, labels), logits.argmax(dim=1) == labels


def frequent_words(texts: Iterable[str], min_count: int) -> tuple[str, ...]:
    """Return the words with at least `min_count` occurrences, most frequent first."""
    counts = Counter(word for text in texts for word in split_words(text))
    return tuple(word for word, count in counts.most_common() if count >= min_count)
