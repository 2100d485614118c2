"""Aligners of CTC: how well each token of one text is supported by another text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ctrlreward.engine.batching import windows
from ctrlreward.engine.sharing import locked
from ctrlreward.functional.alignment import best_cosines
from ctrlreward.models.control_tokens import text_reader
from ctrlreward.models.encoder import Encoder
from ctrlreward.samples import shortened

Spans = tuple[tuple[int, int], ...]


class TokenAlignment(NamedTuple):
    """Spans of the tokens of a text, and their alignment with another; higher is better."""

    spans: Spans
    values: npt.NDArray[np.float64]


class Aligner(Protocol):
    """Model that aligns the tokens of texts with other texts."""

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterable[TokenAlignment]:
        """Yield the alignment of a with b for each pair (a, b), in the given order."""


class EmbeddingAligner:
    """Embedding aligner E: each token's largest cosine with a token of the other text, -1 to 1.

    Deng et al. (2021), https://arxiv.org/abs/2109.06379: the matching of BERTScore without idf
    weights. As in their package, special tokens are encoded but not matched.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterator[TokenAlignment]:
        """Yield the cosines of each pair (a, b); each text is encoded once, long ones truncated.

        Memory does not grow with the pairs if those with a common text are adjacent
        (`group_shared_texts`). No values if a does not have a token; NaN values if b does not have
        one.
        """
        last_pair = {text: i for i, pair in enumerate(pairs) for text in pair}
        distinct = list(dict.fromkeys(text for pair in pairs for text in pair))
        remaining = windows(list(map(len, distinct)), self.encoder.batch_tokens)
        tokens: dict[str, tuple[Spans, npt.NDArray[np.float32]]] = {}
        for i, pair in enumerate(pairs):
            while not tokens.keys() >= {*pair}:
                texts = [distinct[j] for j in next(remaining)]
                tokens.update(zip(texts, self._tokens(texts), strict=True))
            (spans, vectors), (_, others) = (tokens[text] for text in pair)
            yield TokenAlignment(spans, best_cosines(vectors, others))
            for text in {*pair}:
                if last_pair[text] == i:
                    del tokens[text]

    def _tokens(self, texts: list[str]) -> list[tuple[Spans, npt.NDArray[np.float32]]]:
        """Return spans and vectors of the tokens of texts, without special ones."""
        reader = text_reader(self.encoder.tokenizer, texts)
        read = partial(
            reader,
            texts,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        with locked(self.encoder):
            encoded = read()
            fits = max(map(len, encoded.input_ids), default=0) <= self.encoder.max_tokens
            rows = list(map(tuple, encoded.input_ids)) if fits else None
            embedded = self.encoder.token_embeddings(texts, lambda i: shortened(texts[i]), rows)
            if not fits:  # truncate as the encoder did
                encoded = read(truncation=True, max_length=max(1, *map(len, embedded)))
        tokens = []
        for i, vectors in enumerate(embedded):
            own = [j for j, added in enumerate(encoded.special_tokens_mask[i]) if not added]
            offsets = encoded.offset_mapping[i]
            spans = tuple((offsets[j][0], offsets[j][1]) for j in own)
            tokens.append((spans, vectors[own]))
        return tokens


def group_shared_texts(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the distinct pairs, ordered so that those with the same frequent text are adjacent."""
    distinct = list(dict.fromkeys(pairs))
    counts = Counter(text for pair in distinct for text in pair)
    return sorted(distinct, key=lambda pair: sorted(pair, key=lambda text: (-counts[text], text)))
