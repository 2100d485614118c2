"""English function words, which carry no content."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

# Determiners, pronouns, auxiliaries, prepositions, conjunctions and adverbs.
_WORDS = """
    a an the this that these those some any each all both few more most other such no own same
    i me my mine myself we us our ours ourselves you your yours yourself yourselves
    he him his himself she her hers herself it its itself they them their theirs themselves
    who whom whose which what
    am is are was were be been being have has had having do does did doing
    can cannot could may might must ought shall should will would
    about above after against at before below between by down during for from in into of off on
    out over through to under up with
    and but or nor if because as until while than so
    again further then once here there when where why how not only too very just now
"""
_BEFORE_NOT = """
    ai are ca could did do does had has have is might must need sha should was were wo would
"""
_ENDINGS = ("d", "ll", "m", "re", "s", "ve")
_BEFORE_ENDINGS = "i you he she it we they that there here who what"

# Contractions, and the pieces left if a tokenizer splits them at the apostrophe: `don't`, `don` and
# `t`; `they're` and `re`.
ENGLISH_STOP_WORDS = frozenset(
    [
        *_WORDS.split(),
        *("t", *_ENDINGS),
        *(f"{verb}n{rest}" for verb in _BEFORE_NOT.split() for rest in ("", "'t")),
        *(f"{word}'{ending}" for word in _BEFORE_ENDINGS.split() for ending in _ENDINGS),
    ]
)


def read_stop_words(given: str | PathLike[str] | Sequence[str] | None) -> frozenset[str]:
    """Return stop words in lower case: of a file, given, or `ENGLISH_STOP_WORDS`."""
    if given is None:
        return ENGLISH_STOP_WORDS
    if isinstance(given, (str, PathLike)):
        try:
            given = Path(given).read_text(encoding="utf-8").split()
        except OSError as error:
            raise ValueError(
                f"stop_words = {str(given)!r} can't be read ({error.strerror}), must be the path "
                "of a file with one word per line, or a list of words"
            ) from error
    return frozenset(word.lower() for word in given)
