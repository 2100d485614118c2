"""Kim's (2014) TextCNN, the style classifier of style transfer: network, training, classifier.

`configs/style_transfer/text_cnn_yelp.yaml` trains it, and `TextCNNClassifier` of its folder judges.
Copy this file to change them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ctrlreward.files import read_json, write_whole
from ctrlreward.models.batching import Ids, pad_rows, run_distinct
from ctrlreward.models.classifier import Probabilities
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.words import split_words
from ctrlreward.recipes.scoring_models.model_trainer import ModelTrainer
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines, split_off
from ctrlreward.recipes.training_batches import list_batches

# Reserved ids, before the ids of the words.
_PADDING, _UNKNOWN = 0, 1

_BATCH_WORDS = 8192


class Sentence(NamedTuple):
    """A text, and the index of its label."""

    text: str
    label: int


class SentenceData(pl.LightningDataModule):
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

    Attributes:
        sentences: Sentences of `"train"`, `"validation"` and `"test"`.
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
            raise ValueError(f"test must have the labels {', '.join(train)}, got {', '.join(test)}")
        self.labels = tuple(train)
        self.train, self.test, self.exclude = train, test, exclude
        self.validation_share, self.batch_size, self.seed = validation_share, batch_size, seed
        self.sentences: dict[str, list[Sentence]] = {}

    def setup(self, stage: str) -> None:
        test = list(self._read(self.test))
        held_out = {sentence.text for sentence in test} | read_held_out(self.exclude)
        kept = [s for s in dict.fromkeys(self._read(self.train)) if s.text not in held_out]
        texts = list(dict.fromkeys(sentence.text for sentence in kept))
        files = list(self.train.values())
        validation = set(split_off(texts, self.validation_share, self.seed, files)[1])
        self.sentences = {
            "train": [sentence for sentence in kept if sentence.text not in validation],
            "validation": [sentence for sentence in kept if sentence.text in validation],
            "test": test,
        }

    def _read(self, files: Mapping[str, str]) -> Iterator[Sentence]:
        for label, file in enumerate(files.values()):
            texts = (matching_key(line) for line in read_lines([file]) if line.strip())
            yield from (Sentence(text, label) for text in texts)

    def train_dataloader(self) -> DataLoader[Sentence]:
        return list_batches(self.sentences["train"], self.batch_size, self.seed)

    def val_dataloader(self) -> DataLoader[Sentence]:
        sentences = self.sentences["validation"]
        return list_batches(sentences, self.batch_size, self.seed, shuffle=False)


class SentenceClassifierTrainer(ModelTrainer[SentenceData]):
    """Steps of a classifier of sentences; a subclass has the network and writes its folder.

    Logs `train_loss`, `val_loss` and `val_accuracy`.
    """

    def training_step(self, batch: list[Sentence], batch_idx: int) -> Tensor:
        loss, _ = self._loss_and_hits(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: list[Sentence], batch_idx: int) -> None:
        """Log the cross-entropy and the accuracy."""
        loss, hits = self._loss_and_hits(batch)
        values = {"val_loss": loss, "val_accuracy": hits.float().mean()}
        self.log_dict(values, prog_bar=True, batch_size=len(batch), sync_dist=True)

    @abstractmethod
    def _loss_and_hits(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and for each sentence whether it is classified correctly."""


class TextCNNTrainer(SentenceClassifierTrainer):
    """Trainer of a `TextCNN` on `SentenceData`; see `ModelTrainer`.

    `TextCNNClassifier(folder)` reads the folder; `evaluation.json` in it has `test_accuracy`.

    Args:
        folder: Folder of the trained model.
        min_count: Words that occur less often in the training sentences are unknown words.
        embedding_size: Size of a word embedding.
        widths: Widths of the filters, in words.
        filters: Number of filters of each width.
        learning_rate: Initial learning rate of Adam, with linear decay to 0 at the last step.
    """

    def __init__(
        self,
        folder: str,
        min_count: int = 2,
        embedding_size: int = 64,
        widths: Sequence[int] = (3, 4, 5),
        filters: int = 128,
        learning_rate: float = 2e-3,
    ) -> None:
        super().__init__(folder)
        self.min_count, self.learning_rate = min_count, learning_rate
        self.sizes = (embedding_size, tuple(widths), filters)

    def setup(self, stage: str) -> None:
        self.check_replaceable(stage)
        texts = (sentence.text for sentence in self.data.sentences["train"])
        words = frequent_words(texts, self.min_count)
        self.model = TextCNN(TextCNNConfig(words, self.data.labels, *self.sizes))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = torch.optim.Adam(self.model.parameters(), self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    def write_model(self, folder: Path) -> dict[str, Any]:
        save_text_cnn(self.model, folder)
        test = self.data.sentences["test"]
        classifier = TextCNNClassifier(str(folder))
        predicted = classifier.probabilities([s.text for s in test]).argmax(axis=1)
        accuracy = float(np.mean(predicted == [s.label for s in test]))
        return {"test_accuracy": accuracy, "test_sentences": len(test)}

    def _loss_and_hits(self, batch: list[Sentence]) -> tuple[Tensor, Tensor]:
        rows = [self.model.config.encode(sentence.text) for sentence in batch]
        logits = self.model(*pad_rows(rows, _PADDING, self.device))
        labels = torch.tensor([sentence.label for sentence in batch], device=self.device)
        return cross_entropy(logits, labels), logits.argmax(dim=1) == labels


def frequent_words(texts: Iterable[str], min_count: int) -> tuple[str, ...]:
    """Return the words with at least `min_count` occurrences, most frequent first."""
    counts = Counter(word for text in texts for word in split_words(text))
    return tuple(word for word, count in counts.most_common() if count >= min_count)


@dataclass(frozen=True)
class TextCNNConfig:
    """Vocabulary, labels and layer sizes of a `TextCNN`.

    `words` are in lower case; all others map to one unknown word. `widths` are filter widths in
    words, with `filters` of each, and `dropout`, 0 to 1, is the rate of the features.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    embedding_size: int = 64
    widths: tuple[int, ...] = (3, 4, 5)
    filters: int = 128
    dropout: float = 0.5

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, _UNKNOWN + 1)}

    def encode(self, text: str) -> Ids:
        """Return the ids of the words of a text, padded to the widest filter."""
        ids = [self._ids.get(word, _UNKNOWN) for word in split_words(text)]
        return (*ids, *[_PADDING] * (max(self.widths) - len(ids)))


class TextCNN(nn.Module):
    """Convolutions over words with max-over-time pooling (Kim 2014, aclanthology.org/D14-1181)."""

    def __init__(self, config: TextCNNConfig) -> None:
        super().__init__()
        self.config = config
        size = config.embedding_size
        self.embedding = nn.Embedding(len(config.words) + 2, size, padding_idx=_PADDING)
        self.convolutions = nn.ModuleList(
            nn.Linear(size * width, config.filters) for width in config.widths
        )
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.filters * len(config.widths), len(config.labels))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map padded ids and their mask, (rows, longest), to logits, (rows, labels)."""
        vectors = self.embedding(ids)
        features = []
        for width, convolution in zip(self.config.widths, self.convolutions, strict=True):
            # A matrix product over all windows is faster than Conv1d on a CPU.
            values = convolution(vectors.unfold(1, width, 1).flatten(2))
            # A window counts if its last word does.
            outside = mask[:, width - 1 :].unsqueeze(2) == 0
            features.append(values.masked_fill(outside, -torch.inf).amax(dim=1).relu())
        logits: Tensor = self.output(self.dropout(torch.cat(features, dim=1)))
        return logits


def save_text_cnn(model: TextCNN, folder: str | PathLike[str]) -> None:
    """Write `model.safetensors` and `config.json`; create the folder if needed."""
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    write_whole(Path(folder) / "model.safetensors", save(weights))
    write_whole(Path(folder) / "config.json", json.dumps(asdict(model.config), indent=1))


def load_text_cnn(folder: str, device: str = "cpu") -> TextCNN:
    """Load the network of a folder for inference."""
    model = TextCNN(_read_config(folder))
    model.load_state_dict(load_file(Path(folder).expanduser() / "model.safetensors"))
    return model.eval().requires_grad_(False).to(device)


def _read_config(folder: str) -> TextCNNConfig:
    values: dict[str, Any] = read_json(Path(folder).expanduser() / "config.json")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return TextCNNConfig(**{**values, **lists})


@dataclass(frozen=True)
class TextCNNClassifier:
    """Classifier of a folder that `TextCNNTrainer` has written, for `Accuracy`.

    The folder is read at the first use, when another job may just have trained it.
    """

    folder: str
    device: str = "cpu"

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the training data, in the order of the outputs."""
        return _read_config(self.folder).labels

    @cached_property
    def network(self) -> TextCNN:
        """The loaded network, shared by all classifiers of the folder."""
        return shared_model(load_text_cnn, self.folder, self.device)

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Return the softmax over the labels, float64, (texts, labels); no text is truncated."""

        def forward(rows: list[Ids]) -> list[Probabilities]:
            logits = self.network(*pad_rows(rows, _PADDING, torch.device(self.device)))
            return list(logits.cpu().double().softmax(dim=-1).numpy())

        rows = [self.network.config.encode(text) for text in texts]
        values = run_distinct(rows, _BATCH_WORDS, forward)
        return np.array(values, dtype=np.float64).reshape(-1, len(self.labels))
