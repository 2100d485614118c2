"""TextCNN, the convolutional text classifier of Kim (2014), trained by a recipe in minutes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from ctrlreward.files import read_json, write_whole
from ctrlreward.text.words import split_words
from ctrlreward.weights.dtypes import pick_dtype

# "model_type" in config.json, which distinguishes the folder from one written by transformers.
MODEL_TYPE = "ctrlreward-text-cnn"

_BATCH_WORDS = 8192

# Reserved ids, before the ids of the words.
PADDING, _UNKNOWN = 0, 1


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

    def __post_init__(self) -> None:
        for name, items in (("words", self.words), ("labels", self.labels)):
            for item, times in Counter(items).most_common(1):
                if times > 1:
                    raise ValueError(f"{name} contains {item!r} {times} times, must be distinct")
        if len(self.labels) < 2:
            raise ValueError(f"labels must be 2 labels or more, got {self.labels}")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths must be one or more, each 1 or more words, got {self.widths}")
        for name in ("embedding_size", "filters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, _UNKNOWN + 1)}

    def encode(self, text: str) -> Ids:
        """Return the ids of the words of a text, padded to the widest filter."""
        ids = [self._ids.get(word, _UNKNOWN) for word in split_words(text)]
        return (*ids, *[PADDING] * (max(self.widths) - len(ids)))


class TextCNN(nn.Module):
    """Convolutions over words with max-over-time pooling (Kim 2014, aclanthology.org/D14-1181)."""

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


class TextCNNClassifier:
    """Frozen, trained `TextCNN`: a `FrozenModel` with words in place of tokens."""

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
        model, weights = TextCNN(self.config), path / "model.safetensors"
        try:
            model.load_state_dict(load_file(weights))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ValueError(
                f"{weights} is missing or does not match its config.json. Write the folder again "
                f"with the text_cnn recipe ({' '.join(str(error).split())})"
            ) from error
        self.model = model.eval().requires_grad_(False).to(self.device, pick_dtype(dtype, device))

    def probabilities(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the softmax over the labels, float64, (texts, labels); no text is truncated."""

        def forward(rows: list[Ids]) -> list[npt.NDArray[np.float64]]:
            logits = self.model(*pad_rows(rows, PADDING, self.device))
            return list(logits.cpu().double().softmax(dim=-1).numpy())

        rows = [self.config.encode(text) for text in texts]
        description = f"{self.name}: {len(rows)} texts"
        values = run_distinct(rows, self.batch_tokens, forward, description)
        return np.array(values, dtype=np.float64).reshape(-1, len(self.labels))


def save_text_cnn(model: TextCNN, folder: str | PathLike[str]) -> None:
    """Write `model.safetensors` and `config.json`; create the folder if needed."""
    path = Path(folder).expanduser()
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    write_whole(path / "model.safetensors", save(weights))
    config = {"model_type": MODEL_TYPE, **asdict(model.config)}
    write_whole(path / "config.json", json.dumps(config, indent=1))


def read_config(file: Path) -> dict[str, Any]:
    """Read a `config.json`, of transformers or of `save_text_cnn`."""
    if not file.is_file():
        raise ValueError(f"{file} is missing, must be in a folder written by the text_cnn recipe")
    try:
        content = read_json(file)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a JSON object. Write the model folder again.")
    return content


def _parse(file: Path) -> TextCNNConfig:
    given = read_config(file)
    if given.pop("model_type", None) != MODEL_TYPE:
        raise ValueError(
            f'{file} does not have "model_type": {MODEL_TYPE!r}. Use a folder written by the '
            "text_cnn recipe, or Classifier for a transformers model."
        )
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    try:
        return TextCNNConfig(**values)
    except (TypeError, ValueError) as error:  # another field, or a value out of range
        raise ValueError(f"{file}: {error}") from error
