"""Patterns of CTRLEval (Ke et al., ACL 2022): each aspect of a text as blanks to be filled."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlreward.models.tasks import Blank
from ctrlreward.scorers.task import TEXT_SLOT, WORD_SLOT


def coherence_blanks(sentences: Sequence[str]) -> list[Blank]:
    """Each sentence blanked in turn, to be filled given all others."""
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
    """The remainder given the prefix and the prefix given the remainder.

    The remainder keeps its leading space, as in the published implementation.
    """
    remainder = text[len(prefix) :]
    return [
        Blank(prefix + " ", "", (remainder,), joined=True),
        Blank("", " " + remainder, (prefix,)),
    ]


def relevance_blanks(text: str, prompts: Sequence[str], words: Sequence[str]) -> list[Blank]:
    """The text in each prompt, every label word a candidate for the prompt's blank."""
    blanks = []
    for prompt in prompts:
        # Parted first: a generated text may hold anything, the names of the slots too.
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
