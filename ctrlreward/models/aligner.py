"""Aligners: how well each token of one text is borne out by another text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.alignment import best_cosines
from ctrlreward.models.batching import runs
from ctrlreward.models.encoder import Encoder
from ctrlreward.samples import shortened

Spans = tuple[tuple[int, int], ...]

# Of texts that are read at a time: enough to fill a GPU with texts of similar length.
_CHARACTERS_AT_A_TIME = 2**17


class TokenAlignment(NamedTuple):
    """How well each token of text a is aligned with text b.

    Attributes:
        spans: Where each token stands in a: its first character and the one after its last.
        values: Float64, shape (len(spans),); higher is better aligned.
    """

    spans: Spans
    values: npt.NDArray[np.float64]


class Aligner(Protocol):
    """Whatever aligns the tokens of texts with other texts."""

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[TokenAlignment]:
        """For each pair (a, b) the alignment of a's tokens with b, in the given order."""


class EmbeddingAligner:
    """A token's largest cosine with a token of the other text, -1 to 1 (CTC's E).

    Deng et al. (2021), https://arxiv.org/abs/2109.06379: the matching of BERTScore, without its
    idf weights. As in their package, special tokens take no part on either side, though the
    encoder reads them.

    Args:
        model: Local folder, hub id or short name of an encoder, read at its last layer.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.
    """

    def __init__(
        self,
        model: str = "minilm-l6",
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.encoder = Encoder(model, device, dtype, batch_tokens)

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[TokenAlignment]:
        """The cosines of each pair (a, b); each distinct text is read once.

        Pairs that share a text are taken one after the other, and a text's tokens are let go of
        after its last pair, so that memory doesn't grow with the number of pairs.

        Texts longer than the model reads are cut, with a warning. Where a has no token there are
        no values; where b has none they are NaN.
        """
        order = _sharing(pairs)
        first = {text: i for i in reversed(order) for text in pairs[i]}
        last = {text: i for i in order for text in pairs[i]}
        new = [[t for t in dict.fromkeys(pair) if first[t] == i] for i, pair in enumerate(pairs)]
        tokens: dict[str, _Tokens] = {}
        aligned: dict[int, TokenAlignment] = {}
        characters = [sum(map(len, texts)) for texts in new]
        for some in runs(order, characters, _CHARACTERS_AT_A_TIME):
            texts = [text for i in some for text in new[i]]
            tokens.update(zip(texts, self._tokens(texts), strict=True))
            for i in some:
                a, b = (tokens[text] for text in pairs[i])
                aligned[i] = TokenAlignment(a.spans, best_cosines(a.vectors, b.vectors))
                for text in {*pairs[i]}:
                    if last[text] == i:
                        del tokens[text]
        return [aligned[i] for i in range(len(pairs))]

    def _tokens(self, texts: list[str]) -> list[_Tokens]:
        """Each text's own tokens."""
        if not texts:
            return []
        embedded = self.encoder.token_embeddings(texts, lambda i: shortened(texts[i]))
        encoded = self.encoder.tokenizer(
            texts,
            truncation=True,
            max_length=max(1, *map(len, embedded)),  # as far as the encoder read
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        return [
            _own_tokens(*row)
            for row in zip(
                embedded, encoded.offset_mapping, encoded.special_tokens_mask, strict=True
            )
        ]


def _sharing(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Places of pairs, those one after the other that share their more frequent text."""
    uses = Counter(text for pair in pairs for text in pair)
    return sorted(
        range(len(pairs)), key=lambda i: sorted(pairs[i], key=lambda text: (-uses[text], text))
    )


class _Tokens(NamedTuple):
    spans: Spans
    vectors: npt.NDArray[np.float32]


def _own_tokens(
    vectors: npt.NDArray[np.float32], offsets: list[tuple[int, int]], special: list[int]
) -> _Tokens:
    own = [place for place, added in enumerate(special) if not added]
    spans = tuple((offsets[i][0], offsets[i][1]) for i in own)
    return _Tokens(spans, vectors[own])
