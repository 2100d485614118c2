"""Words of a text, for models that read words and not subword tokens."""

from __future__ import annotations


def split_words(text: str) -> list[str]:
    """The lower-case words between white space, as in corpora whose punctuation stands apart.

    Text that was not tokenised in this way (`great.`) is to be tokenised before.
    """
    return text.lower().split()
