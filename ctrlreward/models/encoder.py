"""Encoders: one embedding per text or per token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel

from ctrlreward.models.frozen import FrozenModel

Vectors = npt.NDArray[np.float64]


@runtime_checkable
class SentenceEncoder(Protocol):
    """Sentence encoder: an `Encoder`, `WordVectors`, or your own."""

    def embed(
        self, texts: Sequence[str], name: Callable[[int], str] = "texts[{}]".format
    ) -> Vectors:
        """Return unit vectors, float64, shape (texts, width); NaN for a text without one.

        Args:
            texts: Texts to embed.
            name: Names the text at an index in warnings.
        """


class Encoder(FrozenModel):
    """Frozen encoder, read at its last layer."""

    auto_class = AutoModel

    def embed(
        self, texts: Sequence[str], name: Callable[[int], str] = "texts[{}]".format
    ) -> Vectors:
        """Return sentence embeddings as sentence-transformers computes them for MiniLM.

        An embedding is the mean over the text's tokens, special tokens included, normalised to
        length 1. Only truncation differs: that package truncates at 256 tokens, this class at the
        model's context.

        Args:
            texts: Texts to embed; longer ones are truncated, with a warning.
            name: Names the text at an index in warnings.

        Returns:
            Float64, shape (texts, width); NaN for a text without tokens.
        """

        def pool(output: Any, mask: Tensor) -> list[Vectors]:
            hidden = output.last_hidden_state.float()
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            means = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
            return list(normalize(means, dim=-1).cpu().double().numpy())

        return np.array(self.read_texts(texts, name, pool), dtype=np.float64).reshape(
            -1, self.model.config.hidden_size
        )

    def token_embeddings(
        self, texts: Sequence[str], name: Callable[[int], str] = "texts[{}]".format
    ) -> list[npt.NDArray[np.float32]]:
        """Return the last hidden states of each text, one per token, not normalised.

        Row j of a text belongs to token j of `text_reader`, special tokens included.

        Args:
            texts: Texts to embed; longer ones are truncated, with a warning.
            name: Names the text at an index in warnings.

        Returns:
            For each text float32, shape (tokens, width).
        """

        def split(output: Any, mask: Tensor) -> list[npt.NDArray[np.float32]]:
            values = output.last_hidden_state.float().cpu().numpy()
            return [row[:tokens] for row, tokens in zip(values, mask.sum(1).tolist(), strict=True)]

        return self.read_texts(texts, name, split)
