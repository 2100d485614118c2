"""Words of a text, for models that read words instead of subword tokens."""

from __future__ import annotations

import re

# Punctuation, with consecutive dots kept together and marks between digits unchanged.
_MARKS = re.compile(r"\.{2,}|(?<!\d)[.,:]|[.,:](?!\d)|[!?;()\"]")
_NEGATION = re.compile(r"(?<=\w)n't\b")
_CLITIC = re.compile(r"(?<=\w)'(?=(?:s|m|re|ve|ll|d)\b)")


def separate_words(text: str) -> str:
    """Write a text in the style of tokenized corpora: lower case, with a space between words and
    marks.

    Contractions are split as in the Penn Treebank (`did n't`, `it 's`). Such a text
    is unchanged, up to its white space and abbreviations with dots.
    """
    separated = _MARKS.sub(r" \g<0> ", text.lower().replace("’", "'"))
    separated = _NEGATION.sub(" n't", separated)
    return " ".join(_CLITIC.sub(" '", separated).split())


def split_words_and_marks(text: str) -> list[str]:
    """Split into lower-case words and punctuation marks; see `separate_words`."""
    return separate_words(text).split()


def split_words(text: str) -> list[str]:
    """Split at white space, in lower case, as for tokenized corpora: `great.` is one word."""
    return text.lower().split()
