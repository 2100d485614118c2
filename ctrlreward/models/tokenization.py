"""Tokenization: token ids of texts, and of strings in pieces.

Pieces are read apart where that gives the same ids, which is found out once for each tokenizer:
before a space, and around a control token. A piece that many strings share is then read once.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ctrlreward.models.control_tokens import Piece, Pieces, control_of, text_reader
from ctrlreward.samples import shortened

log = logging.getLogger(__name__)

Ids = tuple[int, ...]

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


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int) -> list[Ids]:
    """Return at most `limit` token ids of each text, special ones included; see `text_reader`."""
    if not texts:
        return []
    reader = text_reader(tokenizer, texts)
    rows: list[Ids] = [*map(tuple, reader(list(texts), verbose=False).input_ids)]
    lengths = [*map(len, rows)]
    if long := [i for i, length in enumerate(lengths) if length > limit]:
        # The tokenizer puts the special tokens of a truncated text where they belong.
        cut = reader([texts[i] for i in long], truncation=True, max_length=limit)
        for i, ids in zip(long, cut.input_ids, strict=True):
            rows[i] = tuple(ids)
    warn_truncated("texts", lengths, limit, "their last tokens")
    return rows


def warn_unknown(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    rows: Sequence[Ids],
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
    read = tokenizer(texts[first], return_offsets_mapping=True, verbose=False)
    pairs = zip(read.input_ids, read.offset_mapping, strict=True)
    parts = dict.fromkeys(texts[first][slice(*span)] for token, span in pairs if token == unknown)
    which = f"{', '.join(map(repr, [*parts][:3]))}{', …' if len(parts) > 3 else ''}"
    lack = "no token that the model knows" if unread else "tokens that the model does not know"
    more = f" (and {len(found) - 1} more texts)" if len(found) > 1 else ""
    log.warning(f"{shortened(texts[first])} has {lack}: {which}{more}")
    return unread


def first_tokens(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int | None
) -> list[str]:
    """Return each text truncated to `limit` tokens, None for no limit; warn about the longest.

    Of a text of megabytes, whose tokenization takes seconds, only the beginning is read.
    """
    kept = list(texts)
    if limit is None:
        return kept
    lengths = [0] * len(texts)
    for i, text in enumerate(texts):
        if len(text.encode()) <= limit:  # each token has at least a byte
            continue
        for part in (_beginning(tokenizer, text, 16 * limit), text):
            offsets = text_reader(tokenizer, [part])(
                part, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            ).offset_mapping
            if len(offsets) > limit or part == text:
                break
        if len(offsets) > limit:
            lengths[i], kept[i] = len(offsets), text[: offsets[limit - 1][1]]
    warn_truncated("texts", lengths, limit, "their last tokens", "option max_tokens")
    return kept


def _beginning(tokenizer: PreTrainedTokenizerBase, text: str, size: int) -> str:
    """Return the characters up to a cut after `size` that changes no ids, else the text."""
    place = text.find(" ", size)
    cut = place > 0 and not text[place - 1].isspace() and reads_apart(tokenizer)
    return text[:place] if cut else text


def warn_truncated(
    items: str, lengths: Sequence[int], limit: int | None, dropped: str, reader: str = "model"
) -> None:
    """Log one warning for all items that exceed a context, 0 or None for none; `dropped` is cut."""
    long = [n for n in lengths if limit and n > limit]
    if long:
        log.warning(
            "%d of %d %s exceed the %d tokens that the %s reads (the longest has at least %d): "
            "%s are dropped",
            *(len(long), len(lengths), items, limit, reader, max(long), dropped),
        )


def start_token(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what begins a document, as a list of one id or none.

    It is what the tokenizer itself puts before a text (Llama, Gemma), else its `bos_token` (Phi-3),
    `<|endoftext|>` or `eos_token`. A `bos_token` that the chat template writes out begins a turn,
    not a document (`<|im_start|>` of SmolLM2-Instruct).
    """
    before, _ = special_ids(tokenizer)
    if before:
        return list(before)
    vocabulary, bos = tokenizer.get_vocab(), tokenizer.bos_token
    turn = bos is not None and bos in str(tokenizer.chat_template)
    for token in (None if turn else bos, "<|endoftext|>", bos, tokenizer.eos_token):
        if token in vocabulary:
            return [vocabulary[token]]
    return []


def before_space(prompt: str) -> str:
    """Return a prompt that is continued without the spaces at its end, unless it is only spaces.

    A tokenizer reads a space together with the word after it: a model that has read "The food "
    has seen a token that hardly ever ends a text, and would continue "The food" with " was".
    """
    return prompt.rstrip(" ") or prompt


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[Ids, Ids]:
    """Return the special tokens that a tokenizer puts before and after a text."""
    (alone,) = read_strings(tokenizer, ["a"])["input_ids"]
    whole = tokenizer("a", verbose=False).input_ids
    start = next(i for i in range(len(whole)) if whole[i : i + len(alone)] == alone)
    return tuple(whole[:start]), tuple(whole[start + len(alone) :])


# Options of a tokenizer: without special tokens, and without a word about long texts.
_AS_IT_STANDS: dict[str, Any] = {
    "add_special_tokens": False,
    "return_attention_mask": False,
    "verbose": False,
}


def read_strings(tokenizer: PreTrainedTokenizerBase, strings: list[str], **options: Any) -> Any:
    """Return `input_ids` of texts, without special tokens, and what a tokenizer's options add."""
    if not strings:
        return {"input_ids": [], "offset_mapping": []}
    return text_reader(tokenizer, strings)(strings, **_AS_IT_STANDS, **options)


# Chunks: pieces that a tokenizer reads together

# A text before a cut, and after one.
_LEFT = ("The", "naïve", "12", "soup.", "no!", "(b)", '"', "’s", "好", "☕", "</b>", "x_")
_RIGHT = (" was", " Éé", " 12", " .", " (a", ' "', " 's", " 好", " ☕", "  two", " \nb")
# A token that continues after a space, in the spellings of a space.
_BEYOND_A_WORD = re.compile(r"[^ \u2581\u0120\s][ \u2581\u0120]")
_APART: WeakKeyDictionary[PreTrainedTokenizerBase, bool] = WeakKeyDictionary()


def reads_apart(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether cuts before a space and around control tokens do not change the ids."""
    if tokenizer not in _APART:
        splitter: Any = tokenizer.backend_tokenizer.pre_tokenizer
        splits = splitter is not None and len(splitter.pre_tokenize_str("ab cd")) > 1
        words = splits or not any(map(_BEYOND_A_WORD.search, tokenizer.get_vocab()))
        cuts: list[tuple[Pieces, Pieces]] = [((a,), (b,)) for a in _LEFT for b in _RIGHT]
        for token_id in control_of(tokenizer).literal:
            cuts += [(("soup.",), (token_id,)), ((token_id,), ("was",)), ((token_id,), (token_id,))]
        chunks = [*dict.fromkeys(chunk for a, b in cuts for chunk in (a, b, a + b))]
        read = dict(zip(chunks, read_chunks(tokenizer, chunks), strict=True))
        _APART[tokenizer] = words and all(
            read[a].ids + read[b].ids == read[a + b].ids for a, b in cuts
        )
    return _APART[tokenizer]


def chunked(pieces: Iterable[Piece], apart: bool) -> list[Pieces]:
    """Return the chunks of a string, one for all without cuts (`reads_apart`)."""
    chunks: list[list[Piece]] = []
    for piece in pieces:
        if piece == "":
            continue
        if chunks and not (apart and meets_apart(chunks[-1][-1], piece)):
            chunks[-1].append(piece)
        else:
            chunks.append([piece])
    return [*map(tuple, chunks)]


def meets_apart(left: Piece, right: Piece) -> bool:
    """Return whether two pieces may be read apart: before a space, and around a control token.

    A control token may take white space beside it.
    """
    if isinstance(left, int):
        return isinstance(right, int) or not right[0].isspace()
    return not left[-1].isspace() and (isinstance(right, int) or right[0] == " ")


class Reading(NamedTuple):
    """Token ids of a chunk, where each ends among its characters, and how many it has."""

    ids: list[int]
    ends: list[int]
    size: int


def read_chunks(tokenizer: PreTrainedTokenizerBase, chunks: Sequence[Pieces]) -> list[Reading]:
    """Read each chunk, as the tokenizer reads the whole of it.

    If a text in it spells a control token, its pieces are read one by one.
    """
    if not chunks:
        return []
    literal = control_of(tokenizer).literal
    strings = [characters(tokenizer, chunk) for chunk in chunks]
    encoded = tokenizer(strings, return_offsets_mapping=True, **_AS_IT_STANDS)
    columns = chunks, strings, encoded.input_ids, encoded.offset_mapping
    readings = []
    for chunk, string, ids, own in zip(*columns, strict=True):
        found = [] if literal.isdisjoint(ids) else [i for i in ids if i in literal]
        if found == [piece for piece in chunk if piece in literal]:
            readings.append(Reading(ids, [end for _, end in own], len(string)))
        else:
            readings.append(_one_by_one(tokenizer, chunk))
    return readings


def characters(tokenizer: PreTrainedTokenizerBase, pieces: Pieces) -> str:
    """Return pieces as a string, with control tokens as they are written."""
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return pieces[0]
    names = control_of(tokenizer).names
    return "".join(piece if isinstance(piece, str) else names[piece] for piece in pieces)


Scored: TypeAlias = tuple[list[int], int]
"""Token ids, and the place from which they are scored."""


def read_scored(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[Pieces, Pieces]], apart: bool
) -> list[Scored]:
    """Return the ids of each pair, read as one string, and how many tokens end in the first part.

    A token across the border belongs to the second part. See `chunked` for `apart`.
    """
    cuts = [chunked((*first, *second), apart) for first, second in pairs]
    chunks = [*dict.fromkeys(chunk for cut in cuts for chunk in cut)]
    readings = dict(zip(chunks, read_chunks(tokenizer, chunks), strict=True))
    scored = []
    for (first, _), cut in zip(pairs, cuts, strict=True):
        left = len(characters(tokenizer, first))  # to the border
        ids: list[int] = []
        start = 0
        for reading in map(readings.__getitem__, cut):
            ids += reading.ids
            if reading.size <= left:
                start += len(reading.ids)
            elif left > 0:
                start += bisect_right(reading.ends, left)
            left -= reading.size
        scored.append((ids, start))
    return scored


def spans(starts: Integers, sizes: Integers) -> Integers:
    """Return the indices of spans of a given size each, one after the other."""
    shifts = starts - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(shifts, sizes)


def _one_by_one(tokenizer: PreTrainedTokenizerBase, chunk: Pieces) -> Reading:
    ids: list[int] = []
    ends: list[int] = []
    texts: list[str] = []
    size = 0
    for piece in (*chunk, None):
        if isinstance(piece, str):
            texts.append(piece)
            continue
        text = "".join(texts)
        read = read_strings(tokenizer, [text], return_offsets_mapping=True)
        ids += read["input_ids"][0]
        ends += [size + end for _, end in read["offset_mapping"][0]]
        size += len(text)
        texts = []
        if piece is not None:
            ids.append(piece)
            size += len(control_of(tokenizer).names[piece])
            ends.append(size)
    return Reading(ids, ends, size)
