"""Whole texts for models that read them at once: token ids, cut to what a model reads, padded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from transformers import PretrainedConfig, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

Ids = tuple[int, ...]
Result = TypeVar("Result")

# These count positions from the padding token's id on, so the first ones are never used.
_POSITIONS_AFTER_PADDING = {
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def max_tokens(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> int:
    """Tokens that the model reads of one text, special ones included."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:  # relative positions: no end
        return int(tokenizer.model_max_length)
    if config.model_type in _POSITIONS_AFTER_PADDING:
        positions -= config.pad_token_id + 1
    return int(min(tokenizer.model_max_length, positions))


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    limit: int,
    name: Callable[[int], str] = "texts[{}]".format,
) -> list[Ids]:
    """Token ids of each text, special ones included.

    Args:
        tokenizer: The model's own.
        texts: Any number, any length.
        limit: Longer texts are cut to this many tokens, with one warning for all.
        name: What the warning calls the text at a place.
    """
    if not texts:
        return []
    rows = [tuple(ids) for ids in tokenizer(list(texts), verbose=False).input_ids]
    long = [i for i, ids in enumerate(rows) if len(ids) > limit]
    if long:
        others = f" (and of {len(long) - 1} more texts)" if len(long) > 1 else ""
        log.warning(
            "%s has %d tokens; the model reads %d: the rest is left out%s",
            *(name(long[0]), len(rows[long[0]]), limit, others),
        )
        # The tokenizer knows where the special tokens of a cut text belong.
        cut = tokenizer([texts[i] for i in long], truncation=True, max_length=limit)
        for i, ids in zip(long, cut.input_ids, strict=True):
            rows[i] = tuple(ids)
    return rows


def warn_of_cuts(
    what: str, lengths: Sequence[int], limit: int | None, lost: str, reader: str = "model"
) -> None:
    """One warning for all items that are longer than a model reads; without a limit none.

    Args:
        what: What the items are.
        lengths: Tokens of each.
        limit: Tokens that the model reads; 0 or None where there is no end.
        lost: What of them is left out.
        reader: What reads them.
    """
    long = [n for n in lengths if limit and n > limit]
    if long:
        log.warning(
            "%d of %d %s are longer than the %d tokens that the %s reads (the longest has %d): "
            "%s is left out",
            *(len(long), len(lengths), what, limit, reader, max(long), lost),
        )


def start_token(tokenizer: object) -> list[int]:
    """The token that begins a document: the separator of the GPT-2 family, which instruction
    models keep beside a chat token in its place; else the model's own; else none."""
    vocabulary = tokenizer.get_vocab()  # type: ignore[attr-defined]
    for token in ("<|endoftext|>", tokenizer.bos_token, tokenizer.eos_token):  # type: ignore[attr-defined]
        if token in vocabulary:
            return [vocabulary[token]]
    return []
