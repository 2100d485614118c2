"""The convolutional text classifier of Kim (2014): a small one that a recipe trains in minutes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ctrlreward.engine.batching import Ids, pad_rows, run_distinct
from ctrlreward.files import write_whole
from ctrlreward.text.words import split_words
from ctrlreward.weights.dtypes import pick_dtype

# What tells such a folder from one that transformers wrote, under "model_type" in config.json.
MODEL_TYPE = "ctrlreward-text-cnn"

_BATCH_WORDS = 8192

# Ids; those of the words follow.
PADDING, _UNKNOWN = 0, 1


@dataclass(frozen=True)
class TextCNNConfig:
    """Vocabulary, labels and shape.

    Args:
        words: Known words, in lower case; all others are one unknown word.
        labels: One an output, two or more.
        embedding_size: Width of a word's vector.
        widths: Words that a filter looks at.
        filters: How many there are of each width.
        dropout: Share of the features that are dropped in training, 0 to 1.

    Raises:
        ValueError: A label or a word is named twice, there are fewer than two labels, or a number
            of the shape is not positive.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    embedding_size: int = 64
    widths: tuple[int, ...] = (3, 4, 5)
    filters: int = 128
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name, items in (("words", self.words), ("labels", self.labels)):
            item, times = Counter(items).most_common(1)[0] if items else ("", 0)
            if times > 1:
                raise ValueError(f"{name} holds {item!r} {times} times: name each once")
        if len(self.labels) < 2:
            raise ValueError(f"labels = {self.labels}: a classifier takes 2 labels or more")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths = {self.widths}: give one or more, each 1 or more words")
        for name, number in (("embedding_size", self.embedding_size), ("filters", self.filters)):
            if number < 1:
                raise ValueError(f"{name} = {number}: give 1 or more")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, _UNKNOWN + 1)}

    def encode(self, text: str) -> Ids:
        """Ids of the text's words, with padding up to the widest filter."""
        ids = [self._ids.get(word, _UNKNOWN) for word in split_words(text)]
        return (*ids, *[PADDING] * (max(self.widths) - len(ids)))


class TextCNN(nn.Module):
    """Kim (2014), https://aclanthology.org/D14-1181: convolutions over words, max over time.

    A text's logits don't depend on how far its row is padded.
    """

    def __init__(self, config: TextCNNConfig) -> None:
        super().__init__()
        self.config = config
        size = config.embedding_size
        self.embedding = nn.Embedding(len(config.words) + 2, size, padding_idx=PADDING)
        self.convolutions = nn.ModuleList(
            nn.Linear(size * width, config.filters) for width in config.widths
        )
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.filters * len(config.widths), len(config.labels))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Logits, shape (rows, labels).

        Args:
            ids: What `TextCNNConfig.encode` gives, padded, shape (rows, longest).
            mask: 1 for the places of `encode`, 0 behind them, same shape.
        """
        vectors = self.embedding(ids)
        features = []
        for width, convolution in zip(self.config.widths, self.convolutions, strict=True):
            # A matrix product over all windows: on a CPU faster than Conv1d.
            values = convolution(vectors.unfold(1, width, 1).flatten(2))
            # A window counts where its last place does.
            outside = mask[:, width - 1 :].unsqueeze(2) == 0
            features.append(values.masked_fill(outside, -torch.inf).amax(dim=1).relu())
        logits: Tensor = self.output(self.dropout(torch.cat(features, dim=1)))
        return logits


class TextCNNClassifier:
    """A trained `TextCNN`, frozen.

    Args:
        folder: As `save_text_cnn` writes it.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Word budget of one forward pass, padding included; None takes 8192.

    Attributes:
        labels: The labels, one a column of `probabilities`.

    Raises:
        ValueError: The folder is not such a one.
    """

    def __init__(
        self,
        folder: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.name = folder
        self.device = torch.device(device)
        self.batch_tokens = _BATCH_WORDS if batch_tokens is None else batch_tokens
        path = Path(folder).expanduser()
        self.config = _parse(path / "config.json")
        self.labels = self.config.labels
        model = TextCNN(self.config)
        _load_weights(model, path / "model.safetensors")
        self.model = model.eval().requires_grad_(False).to(self.device, pick_dtype(dtype, device))

    def probabilities(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Softmax over the labels, float64, shape (texts, labels), in the given order.

        Texts of any length are read whole; one without words has the probabilities of nothing.
        """

        def forward(rows: list[Ids]) -> list[npt.NDArray[np.float64]]:
            logits = self.model(*pad_rows(rows, PADDING, self.device))
            return list(logits.cpu().double().softmax(dim=-1).numpy())

        rows = [self.config.encode(text) for text in texts]
        description = f"{self.name}: {len(rows)} texts"
        values = run_distinct(rows, self.batch_tokens, forward, description)
        return np.array(values, dtype=np.float64).reshape(-1, len(self.labels))


def frequent_words(texts: Iterable[str], min_count: int) -> tuple[str, ...]:
    """The words that occur at least so often, the most frequent first."""
    counts = Counter(word for text in texts for word in split_words(text))
    return tuple(word for word, count in counts.most_common() if count >= min_count)


def save_text_cnn(model: TextCNN, folder: str | PathLike[str]) -> None:
    """Writes `model.safetensors` and `config.json`; the folder is made where it is missing."""
    path = Path(folder).expanduser()
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    write_whole(path / "model.safetensors", save(weights))
    config = {"model_type": MODEL_TYPE, **asdict(model.config)}
    write_whole(path / "config.json", json.dumps(config, indent=1))


def read_config(file: Path) -> dict[str, Any]:
    """What a `config.json` holds, whoever wrote it.

    Raises:
        ValueError: It is missing, or holds no JSON object.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing: give a folder that the text_cnn recipe wrote")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no JSON object: write the model's folder anew")
    return content


def _parse(file: Path) -> TextCNNConfig:
    given = read_config(file)
    if given.pop("model_type", None) != MODEL_TYPE:
        raise ValueError(
            f'{file} has not "model_type": {MODEL_TYPE!r}: give a folder that the text_cnn '
            "recipe wrote, or Classifier for one of transformers"
        )
    known = {field.name for field in fields(TextCNNConfig)}
    if given.keys() != known:
        raise ValueError(
            f"{file} has the fields {', '.join(given)}; a TextCNN has {', '.join(sorted(known))}"
        )
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    try:
        return TextCNNConfig(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def _load_weights(model: TextCNN, file: Path) -> None:
    try:
        model.load_state_dict(load_file(file))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"{file} is missing or doesn't hold the weights that config.json beside it describes: "
            f"write the folder anew with the text_cnn recipe ({error})"
        ) from error
