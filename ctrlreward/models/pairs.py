"""Pairs of texts for models that read both at once: encoded, cut to what a model reads, padded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctrlreward.engine.batching import Ids, pad_rows
from ctrlreward.samples import shortened

log = logging.getLogger(__name__)

Pair = tuple[str, str]


class EncodedPair(NamedTuple):
    """A pair (a, b) as the model reads it.

    Attributes:
        ids: Token ids, special ones included.
        types: Which of the texts each token is of, for models that are told so; else empty.
        places: Which of `ids` are tokens of a.
        spans: Where these stand in a: the first character and the one after the last.
        has_b: Whether b has a token.
        left_out: Tokens of a and of b that were cut off.
    """

    ids: Ids
    types: Ids
    places: Ids
    spans: tuple[tuple[int, int], ...]
    has_b: bool
    left_out: tuple[int, int] = (0, 0)


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair], limit: int
) -> list[EncodedPair]:
    """Pairs (a, b), encoded by the tokenizer's own rule for two texts.

    Only b is cut where a pair is longer than the model reads; where a alone leaves no room for b,
    the longer of the two is. `warn_of_cuts` says so.

    Args:
        tokenizer: The model's own, a fast one.
        pairs: Any number.
        limit: Tokens that the model reads, special ones included.
    """
    if not pairs:
        return []
    batch = tokenizer(
        [a for a, _ in pairs],
        [b for _, b in pairs],
        return_offsets_mapping=True,
        verbose=False,
    )
    encoded = [_pair(batch, row) for row in range(len(pairs))]
    for i, pair in enumerate(encoded):
        if len(pair.ids) <= limit:
            continue
        a, b = pairs[i]
        room = limit - tokenizer.num_special_tokens_to_add(pair=True) - len(pair.places)
        cut = tokenizer(
            [a],
            [b],
            truncation="only_second" if room > 0 else "longest_first",
            max_length=limit,
            return_offsets_mapping=True,
        )
        short = _pair(cut, 0)
        of_a = len(pair.places) - len(short.places)
        of_b = len(pair.ids) - len(short.ids) - of_a
        encoded[i] = short._replace(left_out=(of_a, of_b))
    return encoded


def warn_of_cuts(pairs: Sequence[Pair], encoded: Sequence[EncodedPair], limit: int) -> None:
    """One warning for all texts a that were cut, and one for all pairs of which only b was.

    Args:
        pairs: What was encoded.
        encoded: What `encode_pairs` made of it.
        limit: Tokens that the model reads.
    """
    for what, cut in {
        "a leaves no room for b, and is cut": [
            i for i, pair in enumerate(encoded) if pair.left_out[0]
        ],
        "the end of b is left out": [
            i for i, pair in enumerate(encoded) if pair.left_out[1] and not pair.left_out[0]
        ],
    }.items():
        if cut:
            first = encoded[cut[0]]
            a, b = (shortened(text) for text in pairs[cut[0]])
            others = f" (and of {len(cut) - 1} more pairs)" if len(cut) > 1 else ""
            tokens = len(first.ids) + sum(first.left_out)
            log.warning(
                "(%s, %s) has %d tokens; the model reads %d: %s%s",
                *(a, b, tokens, limit, what, others),
            )


def pad_pairs(pairs: Sequence[EncodedPair], pad: int, device: torch.device) -> dict[str, Tensor]:
    """What a model is called with, padded on the right, shape (pairs, longest pair) each."""
    ids, mask = pad_rows([pair.ids for pair in pairs], pad, device)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if pairs and pairs[0].types:
        inputs["token_type_ids"], _ = pad_rows([pair.types for pair in pairs], 0, device)
    return inputs


def _pair(batch: object, row: int) -> EncodedPair:
    encoding = batch[row]  # type: ignore[index]  # of a fast tokenizer
    sides = encoding.sequence_ids
    places = tuple(place for place, side in enumerate(sides) if side == 0)
    told = "token_type_ids" in batch  # type: ignore[operator]
    return EncodedPair(
        tuple(encoding.ids),
        tuple(encoding.type_ids) if told else (),
        places,
        tuple((int(start), int(end)) for start, end in (encoding.offsets[i] for i in places)),
        1 in sides,
    )
