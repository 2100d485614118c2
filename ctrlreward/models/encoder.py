"""Encoders: one embedding per text or per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import normalize
from transformers import AutoModel, PreTrainedModel

from ctrlreward.models.batching import Ids
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.loading import side_file
from ctrlreward.models.sources import SHORT_NAMES
from ctrlreward.models.tokenization import encode_texts

Vectors = npt.NDArray[np.float64]


@runtime_checkable
class SentenceEncoder(Protocol):
    """Sentence encoder: an `Encoder`, `WordVectors`, or your own."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors, float64, (texts, width); NaN for a text without one."""


# Layer whose tokens are compared, by the name of the model without its owner. RoBERTa-large-MNLI's
# is CTC's, the others are BERTScore's.
TOKEN_LAYERS: Mapping[str, int] = {
    **{"distilbert-base-uncased": 5, "distilroberta-base": 5, "longformer-base-4096": 7},
    **{"mpnet-base": 8, "scibert_scivocab_uncased": 8, "albert-base-v2": 9, "bert-base-uncased": 9},
    **{"bert-base-multilingual-cased": 9, "deberta-base-mnli": 9, "deberta-v3-base": 9},
    **{"electra-base-discriminator": 9, "roberta-large-mnli": 9, "xlm-roberta-base": 9},
    **{"roberta-base": 10, "deberta-v3-large": 12, "albert-xlarge-v2": 13},
    **{"electra-large-discriminator": 14, "longformer-large-4096": 14, "roberta-large": 17},
    **{"xlm-roberta-large": 17, "bert-large-uncased": 18, "deberta-large-mnli": 18},
    "deberta-xlarge-mnli": 40,
}
POOLING = ("mean", "cls", "lasttoken")


def token_layer(model: str) -> int | None:
    """Return the layer at which a model's tokens are compared; None for an unknown one."""
    if model not in SHORT_NAMES and Path(model).expanduser().exists():
        return None
    return TOKEN_LAYERS.get(model.rpartition("/")[2])


class Encoder(FrozenModel):
    """Frozen encoder that is computed up to a `layer`, 0 for the embeddings, None for all."""

    auto_class = AutoModel

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
        layer: int | None = None,
    ) -> None:
        self.layer = layer
        super().__init__(model, device, dtype, batch_tokens)

    def _prepare(self) -> None:
        if self.layer is not None:
            drop_layers(self.model, self.layer, self.name)

    @cached_property
    def sentence_tokens(self) -> int:
        """The most tokens of a text that `embed` reads."""
        return min(self.max_tokens, declared_length(self.name) or self.max_tokens)

    @cached_property
    def pooling(self) -> str:
        """How `embed` pools the tokens; see `declared_pooling`."""
        return declared_pooling(self.name)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors as sentence-transformers computes them, float64, (texts, width).

        NaN for a text without a token that the model knows. Texts longer than the model reads, or
        than its `max_seq_length` for sentence-transformers, are truncated, with a warning.
        """
        rows = encode_texts(self.tokenizer, texts, self.sentence_tokens)
        pooling = self.pooling

        def pool(output: Any, mask: Tensor) -> list[Vectors]:
            hidden = output.last_hidden_state.float()
            if pooling == "cls":
                vectors = hidden[:, 0]
            elif pooling == "lasttoken":
                vectors = hidden[range(len(hidden)), mask.sum(dim=1) - 1]
            else:
                weights = mask.unsqueeze(-1).to(hidden.dtype)
                vectors = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
            return list(normalize(vectors, dim=-1).cpu().double().numpy())

        return np.array(self.read_texts(texts, pool, rows), dtype=np.float64).reshape(
            -1, self.model.config.hidden_size
        )

    def token_embeddings(
        self,
        texts: Sequence[str],
        rows: list[Ids] | None = None,
    ) -> list[npt.NDArray[np.float32]]:
        """Return the hidden states of each text and its special tokens, float32, (tokens, width).

        Longer texts are truncated, with a warning. `rows` are the tokens, if known.
        """

        def split(output: Any, mask: Tensor) -> list[npt.NDArray[np.float32]]:
            values = output.last_hidden_state.float().cpu().numpy()
            return [row[:tokens] for row, tokens in zip(values, mask.sum(1).tolist(), strict=True)]

        return self.read_texts(texts, split, rows)


def declared_length(model: str) -> int | None:
    """Return the most tokens that sentence-transformers reads, special tokens included.

    256 for all-MiniLM-L6-v2, whose positions are 512; None if the model does not declare it.
    """
    declared = side_file(model, "sentence_bert_config.json") or {}
    length: int | None = declared.get("max_seq_length")
    return length


def declared_pooling(model: str) -> str:
    """Return how sentence-transformers pools the tokens: "mean", "cls" or "lasttoken"."""
    modules = side_file(model, "modules.json") or []
    kinds = {each["type"].rpartition(".")[2]: each.get("path", "") for each in modules}
    other = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    pooling = side_file(model, f"{kinds.get('Pooling', '1_Pooling')}/config.json") or {}
    used = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value]
    names = [key.removeprefix("pooling_mode_").removesuffix("_tokens") for key in used]
    names = [name.removesuffix("_token") for name in names]
    if other or len(names) > 1 or any(name not in POOLING for name in names):
        raise ValueError(
            f"model = {model!r} must have no layer of sentence-transformers that is not read, got "
            f"{', '.join(other or names)}"
        )
    return names[0] if names else "mean"


def drop_layers(model: PreTrainedModel, count: int, name: str) -> None:
    """Drop the layers above the first `count`; a ValueError if they can't be cut or are fewer."""
    total = model.config.num_hidden_layers
    if not 0 <= count <= total:
        raise ValueError(f"layer must be 0 to {total}, the layers of {name!r}, got {count}")
    stacks = [m for m in model.modules() if isinstance(m, ModuleList) and len(m) == total]
    if not stacks:
        raise ValueError(f"layer must be None for a {model.config.model_type}, got {count}")
    for stack in stacks:
        del stack[count:]
    model.config.num_hidden_layers = count
