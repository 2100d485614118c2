"""Aligners of CTC (E, D and R): how well each token of one text is supported by another text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, permutations
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from ctrlreward.functional.alignment import best_cosines
from ctrlreward.models.batching import in_windows, run_batched
from ctrlreward.models.control_tokens import text_reader
from ctrlreward.models.encoder import Encoder
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.models.pairs import EncodedPair, Pair, encode_pairs, pad_pairs
from ctrlreward.models.sharing import locked
from ctrlreward.models.tokenization import warn_truncated, warn_unknown

Spans = tuple[tuple[int, int], ...]


class TokenAlignment(NamedTuple):
    """Spans of the tokens of a text, and their alignment with another; higher is better."""

    spans: Spans
    values: npt.NDArray[np.float64]


class Aligner(Protocol):
    """Model that aligns the tokens of texts with other texts."""

    def align(self, pairs: Sequence[tuple[str, str]]) -> Iterable[TokenAlignment]:
        """Return the alignment of a with b for each pair (a, b), in the given order."""


class EmbeddingAligner:
    """Embedding aligner E: each token's largest cosine with a token of the other text, -1 to 1.

    Deng et al. (2021), https://arxiv.org/abs/2109.06379: the matching of BERTScore without idf
    weights. Special tokens are encoded but not matched.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[TokenAlignment]:
        """Return the cosines of each pair (a, b); NaN if b does not have a token.

        Texts are encoded in windows, once in each: pairs that share one should be adjacent
        (`group_shared_texts`). Long ones are truncated.
        """
        sizes, seen = [], set[str]()
        for pair in pairs:
            sizes.append(sum(map(len, {*pair} - seen)))
            seen.update(pair)
        return in_windows(pairs, sizes, self._align, self.encoder.batch_tokens)

    def _align(self, pairs: Sequence[tuple[str, str]]) -> list[TokenAlignment]:
        texts = [*dict.fromkeys(chain.from_iterable(pairs))]
        tokens = dict(zip(texts, self._tokens(texts), strict=True))
        return [
            TokenAlignment(tokens[a][0], best_cosines(tokens[a][1], tokens[b][1])) for a, b in pairs
        ]

    @cached_property
    def chance(self) -> float:
        """Mean cosine, -1 to 1, where nothing is shared: of each neutral text with all others.

        0.35 for MiniLM-L6, much higher for encoders whose vectors all point one way.
        """
        texts = neutral_texts()
        values = [alignment.values for alignment in self.align(list(permutations(texts, 2)))]
        others = len(texts) - 1
        best = [np.max(values[i : i + others], axis=0) for i in range(0, len(values), others)]
        return float(np.mean(np.concatenate(best)))

    def _tokens(self, texts: list[str]) -> list[tuple[Spans, npt.NDArray[np.float32]]]:
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
            embedded = self.encoder.token_embeddings(texts, rows)
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


# Label of a token that b supports, as the recipe writes it to `id2label`.
ALIGNED = "aligned"
# Label of natural language inference for a text that follows from another.
ENTAILS = "entailment"


def word_logits(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], batch: Sequence[EncodedPair]
) -> Tensor:
    """Return the logits of a token classifier for the words of a of all pairs, (words, labels).

    As in the released package, the head reads the sum of the features of a word's tokens.
    """
    features = model.base_model(**inputs).last_hidden_state
    *_, head = model.children()
    owned = [(row, places) for row, pair in enumerate(batch) for places in pair.places]
    tokens = [(row, place, k) for k, (row, places) in enumerate(owned) for place in places]
    rows, places, words = torch.tensor(tokens, device=features.device).reshape(-1, 3).T
    sums = features.new_zeros(len(owned), features.shape[-1])
    return head(sums.index_add(0, words, features[rows, places]))


class TokenAligner(FrozenModel):
    """Discriminative aligner: the probability that b supports each word of a, in [0, 1].

    The aligner D of Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5, a token
    classifier with a label "aligned", for words between white space. It reads a before b, unless
    `aligner_b_first` in its config.json is true, as for a decoder.
    """

    auto_class = AutoModelForTokenClassification

    def _prepare(self) -> None:
        labels = {int(i): str(label) for i, label in (self.model.config.id2label or {}).items()}
        aligned = [i for i, label in labels.items() if label.lower() == ALIGNED]
        if not aligned:
            raise ValueError(
                f"model = {self.name!r} must have a label {ALIGNED!r} in id2label of its "
                f"config.json, got {', '.join(labels.values())}"
            )
        self._aligned = aligned[0]
        self._b_first = getattr(self.model.config, "aligner_b_first", False)

    def align(self, pairs: Sequence[Pair]) -> list[TokenAlignment]:
        """Return the probabilities of the words of a for each pair; NaN if b has no token."""

        def read(inputs: dict[str, Tensor], batch: list[EncodedPair]) -> list[TokenAlignment]:
            # float64 on the CPU: not every device has it.
            logits = word_logits(self.model, inputs, batch).float().cpu().double()
            values = logits.softmax(dim=-1)[:, self._aligned].numpy()
            parts = np.split(values, np.cumsum([len(pair.places) for pair in batch])[:-1])
            return [
                TokenAlignment(pair.spans, own if pair.has_b else np.full(len(own), np.nan))
                for pair, own in zip(batch, parts, strict=True)
            ]

        return _align(self, pairs, read, self._b_first)


class RegressionAligner(FrozenModel):
    """Regression aligner: one value for how well b supports the whole of a; higher is better.

    The aligner R of Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5, a sequence
    classifier with one output, in the unit of its training. It reads a before b, unless
    `aligner_b_first` in its config.json is true. Or a model of natural language inference, with a
    label "entailment": the probability that b, the premise, entails a, in [0, 1].
    """

    auto_class = AutoModelForSequenceClassification

    def _prepare(self) -> None:
        config: Any = self.model.config
        labels = [str(config.id2label[i]).lower() for i in range(config.num_labels)]
        self._entails = labels.index(ENTAILS) if ENTAILS in labels else None
        if self._entails is None and config.num_labels != 1:
            raise ValueError(
                f"model = {self.name!r} must have 1 output or a label {ENTAILS!r} in id2label of "
                f"its config.json, got {', '.join(labels)}"
            )
        self._b_first = getattr(config, "aligner_b_first", self._entails is not None)

    def align(self, pairs: Sequence[Pair]) -> list[TokenAlignment]:
        """Return one span, the whole of a, and its value for each pair; NaN if b has no token."""

        def read(inputs: dict[str, Tensor], batch: list[EncodedPair]) -> list[TokenAlignment]:
            logits = self.model(**inputs).logits.float().cpu().double()
            if self._entails is not None:
                logits = logits.softmax(dim=-1)[:, self._entails, None]
            return [
                TokenAlignment(
                    ((0, pair.size),) if pair.places else (),
                    (own if pair.has_b else own * np.nan)[: bool(pair.places)],
                )
                for pair, own in zip(batch, logits.numpy(), strict=True)
            ]

        return _align(self, pairs, read, self._b_first)


def _align(
    aligner: FrozenModel,
    pairs: Sequence[Pair],
    read: Callable[[dict[str, Tensor], list[EncodedPair]], list[TokenAlignment]],
    b_first: bool,
) -> list[TokenAlignment]:
    limit = aligner.max_tokens

    def answer(chosen: Sequence[Pair]) -> list[TokenAlignment]:
        encoded = encode_pairs(aligner.tokenizer, chosen, limit, b_first)
        dropped = "the last tokens of b, or of a if it has as many,"
        warn_truncated("pairs", [pair.length for pair in encoded], limit, dropped)
        texts, ids = [f"{a} {b}" for a, b in chosen], [pair.ids for pair in encoded]
        warn_unknown(aligner.tokenizer, texts, ids)

        def forward(batch: list[int]) -> list[TokenAlignment]:
            rows = [encoded[i] for i in batch]
            pad = aligner.padding_id(pair.ids for pair in rows)
            return read(pad_pairs(rows, pad, aligner.model.device), rows)

        lengths = [len(pair.ids) for pair in encoded]
        return run_batched(lengths, aligner.batch_tokens, forward, aligner.text_padding)

    sizes = [len(a) + len(b) for a, b in pairs]
    return in_windows(pairs, sizes, answer, aligner.batch_tokens)
