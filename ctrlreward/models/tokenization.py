"""Tokenization: token ids of texts, and of strings that are put together from pieces.

A tokenizer reads a string in parts that begin at its spaces, so the ids of a string are mostly the
ids of its pieces, one after the other. Where two pieces meet, the last word of one and the first
word of the other are read together to see whether that holds; if not, the string is read whole.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ctrlreward.models.control_tokens import real_ids, text_reader

log = logging.getLogger(__name__)

Ids = tuple[int, ...]

Pieces: TypeAlias = tuple[str, ...]
"""A string, cut anywhere."""

Integers: TypeAlias = npt.NDArray[np.int64]
NOTHING: Integers = np.zeros(0, np.int64)

# Model types whose positions start after the id of the padding token.
_POSITIONS_AFTER_PADDING = {
    *("camembert", "data2vec-text", "longformer", "mpnet", "roberta", "roberta-prelayernorm"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
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
    rows, lengths = read_rows(text_reader(tokenizer, texts), texts, limit)
    long = [i for i, length in enumerate(lengths) if length > limit]
    if long:
        others = f" (and {len(long) - 1} more texts)" if len(long) > 1 else ""
        log.warning(
            f"{name(long[0])} has {lengths[long[0]]} tokens and is truncated to the {limit} that "
            f"the model reads{others}"
        )
    return rows


def read_rows(
    reader: Any, texts: Sequence[str], limit: int, **options: Any
) -> tuple[list[Ids], list[int]]:
    """Return at most `limit` token ids of each text, and how many it has."""
    rows = [*map(tuple, reader(list(texts), verbose=False, **options).input_ids)]
    lengths = [*map(len, rows)]
    if long := [i for i, length in enumerate(lengths) if length > limit]:
        # The tokenizer puts the special tokens of a truncated text where they belong.
        cut = reader([texts[i] for i in long], truncation=True, max_length=limit, **options)
        for i, ids in zip(long, cut.input_ids, strict=True):
            rows[i] = tuple(ids)
    return rows, lengths


def warn_unknown(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    rows: Sequence[Ids],
    name: Callable[[int], str],
) -> list[int]:
    """Log one warning for all texts with unknown tokens; return the rows without a known one."""
    unknown = tokenizer.unk_token_id
    # GPT-2's tokenizers name the end token, but never need an unknown one.
    named = [
        getattr(tokenizer, f"{n}_token_id") for n in ("bos", "eos", "pad", "cls", "sep", "mask")
    ]
    found = [] if unknown in named else [i for i, ids in enumerate(rows) if unknown in ids]
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
    """Log one warning for all items that exceed a context, 0 or None for none; `dropped` is cut."""
    long = [n for n in lengths if limit and n > limit]
    if long:
        log.warning(
            "%d of %d %s exceed the %d tokens that the %s reads (the longest has %d): "
            "%s are dropped",
            *(len(long), len(lengths), items, limit, reader, max(long), dropped),
        )


def start_token(tokenizer: object) -> list[int]:
    """Return the token that begins a document, as a list of one id or none.

    `<|endoftext|>` comes first: the `bos_token` of an instruction model may be a chat token.
    """
    vocabulary = tokenizer.get_vocab()  # type: ignore[attr-defined]
    for token in ("<|endoftext|>", tokenizer.bos_token, tokenizer.eos_token):  # type: ignore[attr-defined]
        if token in vocabulary:
            return [vocabulary[token]]
    return []


def before_space(prompt: str) -> str:
    """Return a prompt that is continued without the spaces at its end, unless it is only spaces.

    A tokenizer reads a space together with the word after it: a model that has read "The food "
    has seen a token that hardly ever ends a text, and would continue "The food" with " was".
    """
    return prompt.rstrip(" ") or prompt


# A token that continues after a space, in the spellings of a space.
_BEYOND_A_WORD = re.compile(r"[^ \u2581\u0120\s][ \u2581\u0120]")
_APART: WeakKeyDictionary[PreTrainedTokenizerBase, bool] = WeakKeyDictionary()


def read_strings(tokenizer: PreTrainedTokenizerBase, strings: list[str], **options: Any) -> Any:
    """Return `input_ids` of strings, without special tokens, and what a tokenizer's options add."""
    if not strings:
        return {"input_ids": [], "offset_mapping": []}
    reader = text_reader(tokenizer, strings)
    read = reader(
        strings, add_special_tokens=False, return_attention_mask=False, verbose=False, **options
    )
    if reader is not tokenizer:
        read["input_ids"] = [real_ids(tokenizer, row) for row in read["input_ids"]]
    return read


class Reading:
    """Token ids of strings, and of the strings of pairs, without special tokens.

    Attributes:
        ids: Ids of each string.
        meeting: The pairs whose ids are the ids of both, one after the other.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        strings: Iterable[str],
        pairs: Iterable[tuple[str, str]] = (),
    ) -> None:
        pairs = pairs if _reads_words_apart(tokenizer) else ()
        edges = {(a, b): (_last_word(a), first_word(b)) for a, b in dict.fromkeys(pairs)}
        wanted = dict.fromkeys(strings)
        for pair, (last, first) in edges.items():
            wanted |= dict.fromkeys((*pair, last, first, last + first))
        ids = dict(zip(wanted, read_strings(tokenizer, [*wanted])["input_ids"], strict=True))
        self.meeting = {
            (a, b)
            for (a, b), (last, first) in edges.items()
            if ids[last + first] == ids[last] + ids[first]
            and ids[a][len(ids[a]) - len(ids[last]) :] == ids[last]
            and ids[b][: len(ids[first])] == ids[first]
        }
        self.ids = {string: np.array(row, np.int64) for string, row in ids.items()}


def _reads_words_apart(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer splits a string at its spaces, or no token continues after one."""
    if tokenizer not in _APART:
        splitter: Any = tokenizer.backend_tokenizer.pre_tokenizer if tokenizer.is_fast else None
        _APART[tokenizer] = tokenizer.is_fast and (
            (splitter is not None and len(splitter.pre_tokenize_str("ab cd")) > 1)
            or not any(_BEYOND_A_WORD.search(token) for token in tokenizer.get_vocab())
        )
    return _APART[tokenizer]


def glued(pieces: Iterable[str]) -> tuple[list[str], str]:
    """Return a string cut before white space, and the space at its end.

    `["It was. ", "", "So", " "]` is cut to `["It was.", " So"]` and `" "`.
    """
    cut, space = [], ""
    for piece in pieces:
        joined = space + piece
        kept = joined.rstrip()
        space = joined[len(kept) :]
        if kept:
            cut.append(kept)
    return cut, space


def _last_word(text: str) -> str:
    """Return the last word with the white space around it."""
    parts = text.rsplit(None, 1)
    return text[len(parts[0]) :] if len(parts) == 2 else text


def first_word(text: str) -> str:
    """Return the first word with the white space before it."""
    parts = text.split(None, 1)
    return text[: text.index(parts[0]) + len(parts[0])] if parts else text
