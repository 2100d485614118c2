"""Text pairs for cross-encoders: encoded, truncated to the model's context, padded."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctrlreward.models.batching import Ids, pad_rows
from ctrlreward.models.control_tokens import text_reader
from ctrlreward.models.tokenization import warn_truncated

Pair = tuple[str, str]
Span = tuple[int, int]

# Between two texts, for tokenizers that join a pair without a separator token.
_BREAK = "\n\n"

# Unit with a label and a value: a word between white space, or a token.
Unit: TypeAlias = Literal["word", "piece"]
UNITS: tuple[Unit, ...] = get_args(Unit)


class EncodedPair(NamedTuple):
    """Text pair (a, b) as the model reads it, and the numbers of dropped tokens of both."""

    ids: Ids
    types: Ids
    places: tuple[Ids, ...]
    spans: tuple[Span, ...]
    has_b: bool
    size: int  # of a, in characters
    dropped: tuple[int, int] = (0, 0)


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    limit: int,
    unit: Unit = "piece",
    b_first: bool = False,
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
    side = int(b_first)
    encoded = [_pair(batch, row, a, unit, side, len(before)) for row, (a, _) in enumerate(pairs)]
    between = len(reader(before).input_ids) if before else tokenizer.num_special_tokens_to_add(True)
    for i, pair in enumerate(encoded):
        if len(pair.ids) <= limit:
            continue
        tokens = sum(map(len, pair.places))
        left = limit - between - tokens
        first, second = _beginnings(batch[i], firsts[i], seconds[i], 2 * limit)
        truncated = reader(
            [first],
            [second],
            truncation=("only_second", "only_first")[side] if left > 0 else "longest_first",
            max_length=limit,
            return_offsets_mapping=True,
        )
        short = _pair(truncated, 0, pairs[i][0], unit, side, len(before))
        dropped_a = tokens - sum(map(len, short.places))
        dropped_b = len(pair.ids) - len(short.ids) - dropped_a
        encoded[i] = short._replace(dropped=(dropped_a, dropped_b))
    return encoded


def warn_truncated_pairs(encoded: Sequence[EncodedPair], limit: int) -> None:
    """Log one warning for all pairs with a truncated a, one for all with only b truncated."""
    for in_a, dropped in ((True, "the last tokens of a"), (False, "the last tokens of b")):
        cut = [p for p in encoded if any(p.dropped) and (p.dropped[0] > 0) is in_a]
        lengths = [len(pair.ids) + sum(pair.dropped) for pair in cut]
        warn_truncated("pairs", lengths, limit, dropped)


def pad_pairs(pairs: Sequence[EncodedPair], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Return the model inputs, padded on the right, each of shape (pairs, longest pair)."""
    ids, mask = pad_rows([pair.ids for pair in pairs], pad, device)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if pairs and pairs[0].types:
        inputs["token_type_ids"], _ = pad_rows([pair.types for pair in pairs], 0, device)
    return inputs


def _beginnings(encoding: Any, first: str, second: str, limit: int) -> tuple[str, str]:
    """Return two texts truncated to `limit` tokens, the longer one with one more token.

    A tokenizer that truncates keeps all parts that it cuts off: gigabytes for 100,000 words.
    """
    ends: tuple[list[int], list[int]] = ([], [])
    for side, (_, end) in zip(encoding.sequence_ids, encoding.offsets, strict=True):
        if side is not None:
            ends[side].append(end)
    cut = []
    for text, own, other in ((first, *ends), (second, *ends[::-1])):
        most = limit + (len(own) > len(other))
        cut.append(text if len(own) <= most else text[: own[most - 1]])
    return cut[0], cut[1]


def _pair(batch: object, row: int, a: str, unit: Unit, side: int, before: int) -> EncodedPair:
    encoding = batch[row]  # type: ignore[index]  # of a fast tokenizer
    # Each of these properties builds a list of all tokens: they are read once.
    sides, offsets = encoding.sequence_ids, encoding.offsets
    # The second text begins with the separator.
    shift = before if side else 0
    tokens = [
        i for i, of in enumerate(sides) if of == side and (side == 0 or offsets[i][1] > shift)
    ]
    spans = tuple((max(0, int(offsets[i][0]) - shift), int(offsets[i][1]) - shift) for i in tokens)
    has_b = any(
        of == 1 - side and (side or end > before)
        for of, (_, end) in zip(sides, offsets, strict=True)
    )
    places: tuple[Ids, ...] = tuple((place,) for place in tokens)
    if unit == "word":
        places, spans = _words(a, tokens, spans)
    has_types = "token_type_ids" in batch  # type: ignore[operator]
    return EncodedPair(
        tuple(encoding.ids),
        tuple(encoding.type_ids) if has_types else (),
        places,
        spans,
        has_b,
        len(a),
    )


def _words(
    text: str, tokens: Sequence[int], spans: Sequence[Span]
) -> tuple[tuple[Ids, ...], tuple[Span, ...]]:
    """Return the tokens of each word between white space, and its span; none for a dropped word."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    ends = [end for _, end in words]
    grouped: dict[int, list[int]] = {}
    for token, (start, _) in zip(tokens, spans if words else (), strict=bool(words)):
        # White space at the start of a token belongs to the word after it.
        grouped.setdefault(min(bisect_right(ends, start), len(words) - 1), []).append(token)
    return tuple(map(tuple, grouped.values())), tuple(words[i] for i in grouped)
