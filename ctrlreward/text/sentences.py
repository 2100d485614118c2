"""Text into sentences: a splitter of a few rules, and other libraries' by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

# The last marks of a word that may end a sentence, and the quotes and brackets closed after them.
_END = re.compile(r"([.!?…]+)([\"'”’»)\]]*)$")
_OPENING = "\"'“‘«([-–—*"

# A full stop after these never ends a sentence, whatever follows: names and figures do.
_LEADING = frozenset(
    "mr mrs ms dr prof st mt rev hon pres gov sen rep gen col maj capt lt sgt adm "
    "vs e.g i.e cf viz approx ca fig figs vol pp".split()
)
# After these it does, unless the next word starts in lower case.
_TRAILING = frozenset("etc jr sr inc ltd co corp dept est al a.m p.m ph.d".split())
_INITIALS = re.compile(r"[A-HJ-Z]|[A-Z](\.[A-Z])+")  # "I." is a sentence's last word


def split_sentences(text: str) -> list[str]:
    """The sentences of an English text, by punctuation and a short list of abbreviations.

    Sentences end only where there is whitespace, and nothing else is lost: joined by a space they
    are the text again, up to whitespace. On the texts of the CTRLEval paper this splits as NLTK
    does, with which its numbers were computed, and it needs no trained data.

    Args:
        text: May be empty.

    Returns:
        Stripped, none empty; as many as there are, none for a text of whitespace.
    """
    words = re.finditer(r"\S+", text)
    starts = [b.start() for a, b in pairwise(words) if _ends_sentence(a.group(), b.group())]
    return _stripped(text[a:b] for a, b in pairwise([0, *starts, len(text)]))


def sentence_splitter(
    splitter: str | Callable[[str], list[str]] | None = None,
) -> Callable[[str], list[str]]:
    """A splitter by name, or the callable itself.

    Args:
        splitter: A function of one text, or one of
            - `"rules"` (None is the same): `split_sentences`;
            - `"sentencex"`: Wikimedia's library, in English; splits also where the space after a
              sentence is missing;
            - `"nltk"`: NLTK's Punkt, which the CTRLEval paper used; its data are downloaded
              apart (`python -m nltk.downloader punkt_tab`).

    Raises:
        ValueError: The name is unknown; lists the known ones.
        ImportError: The library of that name is not installed.
    """
    if callable(splitter):
        return splitter
    if splitter is None or splitter == "rules":
        return split_sentences
    if splitter == "sentencex":
        segment = _imported("sentencex").segment
        return lambda text: _stripped(segment("en", text))
    if splitter == "nltk":
        tokenize = _imported("nltk").sent_tokenize
        return lambda text: _stripped(tokenize(text))
    raise ValueError(
        f"sentence_splitter = {splitter!r}: give a function str → list[str], or one of "
        "'rules', 'sentencex', 'nltk'"
    )


def _ends_sentence(word: str, following: str) -> bool:
    end = _END.search(word)
    if end is None:
        return False
    marks, closing = end.groups()
    goes_on = following.lstrip(_OPENING)[:1].islower()
    if marks == "." and not closing:
        stem = word[: end.start()].lstrip(_OPENING)
        if stem.lower() in _LEADING or _INITIALS.fullmatch(stem):
            return False
        return not (goes_on and stem.lower() in _TRAILING)
    # “Really?” she said … and went on.
    return not (goes_on and (closing or marks[-2:] == ".." or marks == "…"))


def _stripped(pieces: Iterable[str]) -> list[str]:
    return [piece.strip() for piece in pieces if piece.strip()]


def _imported(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            f"sentence_splitter = {library!r} needs the package {library}: "
            "pip install 'ctrlreward[sentences]'"
        ) from error
