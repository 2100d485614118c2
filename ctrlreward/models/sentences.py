"""Sentence splitting by a few rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from ctrlreward.arguments import one_of
from ctrlreward.extras import import_extra

# Final marks of a word that may end a sentence, and the quotes and brackets that close after them.
_CLOSING = r"[\"'”’»)\]」』）]*"
_END = re.compile(rf"([.!?…。！？]+)({_CLOSING})$")
# Words end at white space, and after the marks of Chinese and Japanese.
_WORD = re.compile(rf"\S+?[。！？]+{_CLOSING}|\S+")
_OPENING = "\"'“‘«([-–—*"

# A full stop after these never ends a sentence, since a name or a figure follows.
_LEADING = frozenset(
    "mr mrs ms dr prof st mt rev hon pres gov sen rep gen col maj capt lt sgt adm "
    "vs e.g i.e cf viz approx ca fig figs vol pp".split()
)
# After these it does, unless the next word starts with a lower-case letter.
_TRAILING = frozenset("etc jr sr inc ltd co corp dept est al a.m p.m ph.d".split())
_INITIALS = re.compile(r"[A-HJ-Z]|[A-Z](\.[A-Z])+")  # "I." is a sentence's last word


def split_sentences(text: str) -> list[str]:
    """Split English text into sentences by punctuation and a short list of abbreviations.

    Sentences end only at whitespace or after 。！？, and only whitespace is lost. On the texts of
    the CTRLEval paper the result is the same as by NLTK, which produced the published numbers.
    """
    words = _WORD.finditer(text)
    starts = [b.start() for a, b in pairwise(words) if _ends_sentence(a.group(), b.group())]
    pieces = (text[a:b].strip() for a, b in pairwise([0, *starts, len(text)]))
    return [piece for piece in pieces if piece]


def find_splitter(
    splitter: Callable[[str], list[str]] | str | None,
) -> Callable[[str], list[str]]:
    """Return a function from a text to its sentences: `split_sentences` for None and `"rules"`.

    `"nltk"` is NLTK's Punkt, as in the CTRLEval paper (`python -m nltk.downloader punkt_tab`).
    """
    if callable(splitter):
        return splitter
    if one_of("sentence_splitter", splitter or "rules", ("rules", "nltk")) == "rules":
        return split_sentences
    split: Callable[[str], list[str]] = import_extra(
        "nltk", "sentence_splitter='nltk'"
    ).sent_tokenize
    return split


def _ends_sentence(word: str, following: str) -> bool:
    end = _END.search(word)
    if end is None:
        return False
    marks, closing = end.groups()
    lower_case = following.lstrip(_OPENING)[:1].islower()
    if marks == "." and not closing:
        stem = word[: end.start()].lstrip(_OPENING)
        if stem.lower() in _LEADING or _INITIALS.fullmatch(stem):
            return False
        return not (lower_case and stem.lower() in _TRAILING)
    # “Really?” she said; well... it works.
    return not (lower_case and (closing or marks[-2:] == ".." or marks == "…"))
