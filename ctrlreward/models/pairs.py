"""Text pairs for cross-encoders: encoded, truncated to the model's context, padded."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctrlreward.models.batching import Ids, pad_rows
from ctrlreward.models.control_tokens import text_reader

Pair = tuple[str, str]
Span = tuple[int, int]

# Between two texts, for tokenizers that join a pair without a separator token.
_BREAK = "\n\n"


class EncodedPair(NamedTuple):
    """Text pair (a, b) as the model reads it, with the tokens and the span of each word of a."""

    ids: Ids
    types: Ids
    places: tuple[Ids, ...]
    spans: tuple[Span, ...]
    has_b: bool
    size: int  # of a, in characters
    length: int  # in tokens, with those that are dropped


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair], limit: int, b_first: bool = False
) -> list[EncodedPair]:
    """Encode pairs (a, b) by the tokenizer's rule for text pairs, or with two line breaks between.

    A pair that exceeds the limit loses the end of b, or of the longer one if a fills the limit.
    """
    if not pairs:
        return []
    reader = text_reader(tokenizer, chain.from_iterable(pairs))
    firsts, seconds = zip(*((b, a) if b_first else (a, b) for a, b in pairs), strict=True)
    # At the start of the second text, which truncation keeps.
    before = "" if tokenizer.num_special_tokens_to_add(pair=True) else _BREAK
    seconds = tuple(before + text for text in seconds)
    batch = reader(list(firsts), list(seconds), return_offsets_mapping=True, verbose=False)
    return [
        _pair(batch, row, a, limit, int(b_first), len(before)) for row, (a, _) in enumerate(pairs)
    ]


def pad_pairs(pairs: Sequence[EncodedPair], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Return the model inputs, padded on the right, each of shape (pairs, longest pair)."""
    ids, mask = pad_rows([pair.ids for pair in pairs], pad, device)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if pairs and pairs[0].types:
        inputs["token_type_ids"], _ = pad_rows([pair.types for pair in pairs], 0, device)
    return inputs


def _kept(sides: Sequence[int | None], limit: int, side: int) -> list[int]:
    """Return the places of the tokens that fit; see `encode_pairs`. Special tokens are kept."""
    if len(sides) <= limit:
        return [*range(len(sides))]
    counts = [sides.count(0), sides.count(1)]
    room = limit - (len(sides) - sum(counts))
    own = counts[side]
    shorter = int(counts[1] < counts[0])
    least = min(counts[shorter], room // 2)
    counts = [room - least, least] if shorter else [least, room - least]
    if own < room:
        counts[side], counts[1 - side] = own, room - own
    kept = []
    for place, of in enumerate(sides):
        if of is not None:
            counts[of] -= 1
        if of is None or counts[of] >= 0:
            kept.append(place)
    return kept


def _pair(batch: Any, row: int, a: str, limit: int, side: int, before: int) -> EncodedPair:
    encoding = batch[row]
    # Each of these properties builds a list of all tokens: they are read once.
    ids, sides, offsets = encoding.ids, encoding.sequence_ids, encoding.offsets
    types = encoding.type_ids if "token_type_ids" in batch else []
    kept = _kept(sides, limit, side)
    # The second text begins with what separates the two.
    texts = [
        (k, sides[i], offsets[i][0] - before * sides[i])
        for k, i in enumerate(kept)
        if sides[i] == 0 or (sides[i] == 1 and offsets[i][1] > before)
    ]
    places, spans = _words(a, [(k, start) for k, of, start in texts if of == side])
    return EncodedPair(
        tuple(ids[i] for i in kept),
        tuple(types[i] for i in kept if types),
        places,
        spans,
        has_b=any(of != side for _, of, _ in texts),
        size=len(a),
        length=len(ids),
    )


def _words(
    text: str, tokens: Sequence[tuple[int, int]]
) -> tuple[tuple[Ids, ...], tuple[Span, ...]]:
    """Return the places of the tokens of each word between white space, and the word's span.

    Tokens are a place and where they start in the text. A word without a token has neither.
    """
    words = [match.span() for match in re.finditer(r"\S+", text)]
    ends = [end for _, end in words]
    grouped: dict[int, list[int]] = {}
    for place, start in tokens if words else ():
        # White space at the start of a token belongs to the word after it.
        grouped.setdefault(min(bisect_right(ends, start), len(words) - 1), []).append(place)
    return tuple(map(tuple, grouped.values())), tuple(words[i] for i in grouped)
