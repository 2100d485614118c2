"""Tokenization: token ids, truncation to a model's context, and the start token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ctrlreward.items import item_logger
from ctrlreward.models.control_tokens import text_reader

log = item_logger(__name__)

Ids = tuple[int, ...]
Result = TypeVar("Result")

# Model types whose positions start after the id of the padding token.
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
    """Return the longest input of a model in tokens, special tokens included."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:  # relative positions: unlimited
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
    """Return the token ids of each text, special tokens included; see `text_reader`."""
    if not texts:
        return []
    reader = text_reader(tokenizer, texts)
    rows = [tuple(ids) for ids in reader(list(texts), verbose=False).input_ids]
    long = [i for i, ids in enumerate(rows) if len(ids) > limit]
    if long:
        others = f" (and {len(long) - 1} more texts)" if len(long) > 1 else ""
        log.warning(
            f"{name(long[0])} has {len(rows[long[0]])} tokens and is truncated to the {limit} that "
            f"the model reads{others}"
        )
        # The tokenizer puts the special tokens of a truncated text where they belong.
        truncated = reader([texts[i] for i in long], truncation=True, max_length=limit)
        for i, ids in zip(long, truncated.input_ids, strict=True):
            rows[i] = tuple(ids)
    return rows


def unknown_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the token that stands for any string outside the vocabulary; None without one.

    GPT-2's tokenizers name one, the end token, but never need it.
    """
    named = ("bos", "eos", "pad", "cls", "sep", "mask")
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in [getattr(tokenizer, f"{n}_token_id") for n in named] else unknown


def warn_unknown(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    rows: Sequence[Ids],
    name: Callable[[int], str],
) -> list[int]:
    """Log one warning for all texts with unknown tokens; return the rows without a known one.

    All unknown strings are equal to the model. A row without one has only special tokens besides.
    """
    unknown = unknown_token(tokenizer)
    found = [i for i, ids in enumerate(rows) if unknown is not None and unknown in ids]
    if not found:
        return []
    known = {unknown, *tokenizer.all_special_ids}
    unread = [i for i in found if known.issuperset(rows[i])]
    first = (unread or found)[0]
    which = ""
    if tokenizer.is_fast:
        read = tokenizer(texts[first], return_offsets_mapping=True, verbose=False)
        pairs = zip(read.input_ids, read.offset_mapping, strict=True)
        spans = [span for token, span in pairs if token == unknown]
        parts = dict.fromkeys(texts[first][slice(*span)] for span in spans)
        which = f": {', '.join(map(repr, [*parts][:3]))}{', …' if len(parts) > 3 else ''}"
    others = f" (and {len(found) - 1} more texts)" if len(found) > 1 else ""
    lack = "no token that the model knows" if unread else "tokens that the model does not know"
    log.warning(f"{name(first)} has {lack}, and can't tell from others{which}{others}")
    return unread


def first_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int | None
) -> list[str]:
    """Return each text truncated to `limit` tokens, None for no limit; warn about the longest."""
    kept = list(texts)
    if limit is None:
        return kept
    lengths: dict[int, int] = {}
    for i, text in enumerate(texts):
        if len(text.encode()) <= limit:  # each token has at least a byte
            continue
        offsets = text_reader(tokenizer, [text])(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        ).offset_mapping
        if len(offsets) > limit:
            lengths[i], kept[i] = len(offsets), text[: offsets[limit - 1][1]]
    if lengths:
        longest = max(lengths, key=lengths.__getitem__)
        others = f" (and {len(lengths) - 1} more texts)" if len(lengths) > 1 else ""
        log.warning(
            "texts[%d] has %d tokens: only the first %d are read, as max_tokens says%s",
            *(longest, lengths[longest], limit, others),
        )
    return kept


def warn_truncated(
    items: str, lengths: Sequence[int], limit: int | None, dropped: str, reader: str = "model"
) -> None:
    """Log one warning for all items (`"continuations"`) that exceed a model's context.

    `dropped` is the part that is cut, `reader` the part of the model that reads them. A limit of 0
    or None means no limit.
    """
    long = [n for n in lengths if limit and n > limit]
    if long:
        log.warning(
            "%d of %d %s exceed the %d tokens that the %s reads (the longest has %d): "
            "%s are dropped",
            *(len(long), len(lengths), items, limit, reader, max(long), dropped),
        )


def start_token(tokenizer: object) -> list[int]:
    """Return the token that begins a document, as a list of one id or none.

    `<|endoftext|>` comes first: instruction models of the GPT-2 family keep it as the separator of
    documents, while their `bos_token` is a chat token (`<|im_start|>` in SmolLM2). Then come the
    tokenizer's own `bos_token` and `eos_token`.
    """
    vocabulary = tokenizer.get_vocab()  # type: ignore[attr-defined]
    for token in ("<|endoftext|>", tokenizer.bos_token, tokenizer.eos_token):  # type: ignore[attr-defined]
        if token in vocabulary:
            return [vocabulary[token]]
    return []
