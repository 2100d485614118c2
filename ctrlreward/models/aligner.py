"""Aligners: how well each token of one text is borne out by another text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ctrlreward.engine.batching import windows
from ctrlreward.functional.alignment import best_cosines
from ctrlreward.models.encoder import Encoder
from ctrlreward.samples import shortened

Spans = tuple[tuple[int, int], ...]


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

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterable[TokenAlignment]:
        """For each pair (a, b) the alignment of a's tokens with b, in the given order.

        They may come one after the other, so that not all are in memory at a time.
        """


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

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterator[TokenAlignment]:
        """The cosines of each pair (a, b), one pair after the other; each text is read once.

        A text's tokens are let go of after its last pair, so memory doesn't grow with the number
        of pairs where those that share a text follow each other (`sharing_order`).

        Texts longer than the model reads are cut, with a warning. Where a has no token there are
        no values; where b has none they are NaN.
        """
        last = {text: i for i, pair in enumerate(pairs) for text in pair}
        distinct = list(dict.fromkeys(text for pair in pairs for text in pair))
        reading = windows(distinct)
        tokens: dict[str, _Tokens] = {}
        for i, pair in enumerate(pairs):
            while not tokens.keys() >= {*pair}:
                texts = [distinct[place] for place in next(reading)]
                tokens.update(zip(texts, self._tokens(texts), strict=True))
            a, b = (tokens[text] for text in pair)
            yield TokenAlignment(a.spans, best_cosines(a.vectors, b.vectors))
            for text in {*pair}:
                if last[text] == i:
                    del tokens[text]

    def _tokens(self, texts: list[str]) -> list[_Tokens]:
        """Each text's own tokens."""
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


def sharing_order(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The distinct pairs, those one after the other that share their more frequent text."""
    distinct = list(dict.fromkeys(pairs))
    uses = Counter(text for pair in distinct for text in pair)
    return sorted(distinct, key=lambda pair: sorted(pair, key=lambda text: (-uses[text], text)))


class _Tokens(NamedTuple):
    spans: Spans
    vectors: npt.NDArray[np.float32]


def _own_tokens(
    vectors: npt.NDArray[np.float32], offsets: list[tuple[int, int]], special: list[int]
) -> _Tokens:
    own = [place for place, added in enumerate(special) if not added]
    spans = tuple((offsets[i][0], offsets[i][1]) for i in own)
    return _Tokens(spans, vectors[own])
