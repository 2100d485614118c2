from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from ctrlreward.recipes.papers.ctc.constituents import constituent_spans, mask_constituents

TEXT = "the old man saw a small boat ."
BRACKETED = (
    "(S (NP (DT the) (JJ old) (NN man)) (VP (VBD saw) (NP (DT a) (JJ small) (NN boat))) (. .))"
)


@dataclass
class Node:
    """Constituent, as stanza has it: words and punctuation are leaves."""

    label: str
    children: list[Node] = field(default_factory=list)


def read(bracketed: str) -> Node:
    stack = [Node("")]
    for token in re.findall(r"\(|\)|[^\s()]+", bracketed):
        if token == "(":
            stack.append(Node(""))
        elif token == ")":
            done = stack.pop()
            stack[-1].children.append(done)
        elif not stack[-1].label:
            stack[-1].label = token
        else:
            stack[-1].children.append(Node(token))
    return stack[0]


WORDS = [match.span() for match in re.finditer(r"\S+", TEXT)]
SPANS = constituent_spans(read(BRACKETED), WORDS)


def test_constituents_are_the_phrases_and_words_of_the_tree() -> None:
    assert {TEXT[start:end] for start, end in SPANS} == {
        *TEXT.split(),
        "the old man",
        "a small boat",
        "saw a small boat",
    }


@pytest.mark.parametrize("seed", range(30))
def test_masked_constituents_are_apart_and_within_the_share(seed: int) -> None:
    chosen = mask_constituents(SPANS, WORDS, random.Random(seed), (0.3, 0.5), 2)
    assert 1 <= len(chosen) <= 2
    assert set(chosen) <= set(SPANS)
    assert sum(len(TEXT[start:end].split()) for start, end in chosen) <= 4
    for (_, end), (start, _) in pairwise(chosen):
        assert TEXT[end:start].strip()


def test_all_constituents_are_drawn_and_the_shortest_where_none_fits() -> None:
    drawn = {
        span
        for seed in range(200)
        for span in mask_constituents(SPANS, WORDS, random.Random(seed), (0.1, 0.6), 2)
    }
    assert drawn == set(SPANS)
    long = [(0, 15), (16, 28)]  # of four and of three words
    assert mask_constituents(long, WORDS, random.Random(0), (0.1, 0.2), 2) == ((16, 28),)
    assert mask_constituents([], WORDS, random.Random(0), (0.1, 0.2), 2) == ()
