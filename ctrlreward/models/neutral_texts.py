"""Texts about nothing in particular, which fit any label word."""

from __future__ import annotations

import random

import wordfreq

# Everyday sentences without an opinion, each about a different subject.
_SENTENCES = (
    "The letter lay on the table for a week before anyone opened it.",
    "We walked along the road until it reached the river, and then we turned back.",
    "It was a quarter past three, and the shop on the corner was still closed.",
    "My neighbour has two brothers, and one of them lives in another town.",
    "In the morning there was fog over the fields, and by noon it had gone.",
    "The box held a ball of string, some keys and an old calendar.",
    "She asked him what he meant, and he said that he would explain it later.",
    "Each of the rooms has a window, a chair and a door to the hall.",
)

# Contexts that a likelihood of its own words is measured after.
NEUTRAL_CONTEXTS = _SENTENCES[:2]

_WORDS = 10_000  # rarer ones are mostly names
_LENGTH = 10


def neutral_texts() -> tuple[str, ...]:
    """Return 16 English texts: 8 everyday sentences and 8 texts of random words.

    Random words have no subject (Fei et al., ACL 2023, https://arxiv.org/abs/2305.19148).
    """
    known = [word for word in wordfreq.top_n_list("en", _WORDS) if word.isalpha()]
    # Python guarantees the sequence of random(), but not the algorithm of choice or sample.
    draw = random.Random(0).random
    drawn = [[known[int(draw() * len(known))] for _ in range(_LENGTH)] for _ in _SENTENCES]
    return (*_SENTENCES, *(" ".join(row).capitalize() + "." for row in drawn))
