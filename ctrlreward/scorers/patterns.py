"""Patterns of CTRLEval (Ke et al., ACL 2022): each aspect of a text as blanks to fill."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlreward.models.tasks import Blank
from ctrlreward.scorers.task import TEXT_SLOT, WORD_SLOT


def coherence_blanks(sentences: Sequence[str]) -> list[Blank]:
    """Return one blank per sentence, to be filled given all other sentences."""
    return [
        Blank(
            " ".join(sentences[:i]) + " ",
            " " + " ".join(sentences[i + 1 :]),
            (sentence,),
            ends=True,
        )
        for i, sentence in enumerate(sentences)
    ]


def consistency_blanks(text: str, prefix: str) -> list[Blank]:
    """Return two blanks: the remainder given the prefix, and the prefix given the remainder.

    The remainder keeps its leading space, as in the published implementation.
    """
    remainder = text[len(prefix) :]
    return [
        Blank(prefix + " ", "", (remainder,), joined=True),
        Blank("", " " + remainder, (prefix,)),
    ]


def relevance_blanks(text: str, prompts: Sequence[str], words: Sequence[str]) -> list[Blank]:
    """Return one blank per prompt that contains the text; every label word is a candidate."""
    blanks = []
    for prompt in prompts:
        # Split before inserting the text, which may itself contain the names of the slots.
        left, right = prompt.split(WORD_SLOT, 1)
        blanks.append(
            Blank(
                left.replace(TEXT_SLOT, text),
                right.replace(TEXT_SLOT, text),
                tuple(words),
                closing=right.partition(TEXT_SLOT)[0].rstrip(),
            )
        )
    return blanks


def reason_for_nan(aspect: str, text: str, prefix: str) -> str:
    """Return why a sample has no pattern, for the warning."""
    if not text.strip():
        return "is empty"
    if aspect == "coherence":
        return "has no sentences"
    return "has nothing beyond its prefix" if prefix.strip() else "has no prefix"
