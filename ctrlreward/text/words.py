"""Words of a text, for models that read words instead of subword tokens."""

from __future__ import annotations


def split_words(text: str) -> list[str]:
    """Split at white space and convert to lower case.

    Punctuation must already be separated from words, as in tokenized corpora: `great.` is one
    word.
    """
    return text.lower().split()
