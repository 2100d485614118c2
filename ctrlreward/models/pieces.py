"""Token ids of strings that are put together from pieces, each of which is tokenized once.

A tokenizer reads a string in parts that begin at its spaces, so the ids of a string are mostly the
ids of its pieces, one after the other. Where two pieces meet, the last word of one and the first
word of the other are read together to see whether that holds; if not, the string is read whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from ctrlreward.models.control_tokens import real_ids, text_reader

Pieces: TypeAlias = tuple[str, ...]
"""A string, cut anywhere."""

Integers: TypeAlias = npt.NDArray[np.int64]
NOTHING: Integers = np.zeros(0, np.int64)

# A token that continues after a space, in the spellings of a space.
_BEYOND_A_WORD = re.compile(r"[^ \u2581\u0120\s][ \u2581\u0120]")


class Reading:
    """Token ids of strings and of pieces, without special tokens.

    Args:
        tokenizer: The tokenizer.
        strings: Strings to read.
        pairs: Pairs of strings to put together.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        strings: Iterable[str],
        pairs: Iterable[tuple[str, str]] = (),
    ) -> None:
        places = dict.fromkeys(pairs) if reads_words_apart(tokenizer) else {}
        wanted = dict.fromkeys(strings)
        edges = {pair: (_last_word(pair[0]), first_word(pair[1])) for pair in places}
        for pair, (last, first) in edges.items():
            wanted |= dict.fromkeys((*pair, last, first, last + first))
        ids = dict(zip(wanted, read_ids(tokenizer, [*wanted]), strict=True))
        self._meets = {
            (a, b): (
                ids[last + first] == ids[last] + ids[first]
                and ids[a][len(ids[a]) - len(ids[last]) :] == ids[last]
                and ids[b][: len(ids[first])] == ids[first]
            )
            for (a, b), (last, first) in edges.items()
        }
        self._ids = {string: np.array(row, np.int64) for string, row in ids.items()}

    def meets(self, a: str, b: str) -> bool:
        """Return whether the ids of a + b are the ids of a and the ids of b."""
        return self._meets.get((a, b), False)

    def __getitem__(self, string: str) -> Integers:
        """Return the ids of a string that was given."""
        return self._ids[string]

    def joined(self, pieces: Sequence[str], before: Integers, after: Integers) -> Integers | None:
        """Return the ids of pieces between others, None if it takes the whole string."""
        if not all(self._meets.get(pair, False) for pair in pairwise(pieces)):
            return None
        return np.concatenate([before, *[self._ids[piece] for piece in pieces], after])


def read_ids(tokenizer: PreTrainedTokenizerBase, strings: list[str]) -> list[list[int]]:
    """Return the token ids of strings, without special tokens; see `text_reader`."""
    return _read(tokenizer, strings)[0] if strings else []


def read_spans(
    tokenizer: PreTrainedTokenizerBase, strings: list[str]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Return the token ids of strings, and the characters of each, its start and its end."""
    if not strings:
        return []
    rows, read = _read(tokenizer, strings, return_offsets_mapping=True)
    return list(zip(rows, read.offset_mapping, strict=True))


def _read(
    tokenizer: PreTrainedTokenizerBase, strings: list[str], **options: Any
) -> tuple[list[list[int]], Any]:
    """Return the token ids of strings, and all that the tokenizer returns of them."""
    reader = text_reader(tokenizer, strings)
    read = reader(
        strings, add_special_tokens=False, return_attention_mask=False, verbose=False, **options
    )
    rows = read.input_ids
    return rows if reader is tokenizer else [real_ids(tokenizer, row) for row in rows], read


_APART: WeakKeyDictionary[PreTrainedTokenizerBase, bool] = WeakKeyDictionary()


def reads_words_apart(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokens of a word don't depend on words further away.

    This holds if the tokenizer splits a string at its spaces, or no token continues after one.
    """
    if tokenizer not in _APART:
        splitter: Any = tokenizer.backend_tokenizer.pre_tokenizer if tokenizer.is_fast else None
        _APART[tokenizer] = tokenizer.is_fast and (
            (splitter is not None and len(splitter.pre_tokenize_str("ab cd")) > 1)
            or not any(_BEYOND_A_WORD.search(token) for token in tokenizer.get_vocab())
        )
    return _APART[tokenizer]


def glued(pieces: Iterable[str]) -> tuple[list[str], str]:
    """Return a string cut before white space, which begins a token, and the space at its end.

    Examples:
        >>> glued(["It was. ", "", "So", " "])
        (['It was.', ' So'], ' ')
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
