"""Constituents of a text, as spans to mask, by the parser of the package stanza."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from ctrlreward.recipes.papers.ctc.labelled_pairs import Span

log = logging.getLogger(__name__)


class Tree(Protocol):
    """Constituent; a word does not have children."""

    children: Sequence[Tree]


def load_parser(language: str) -> Callable[[str], list[Span]] | None:
    """Load a function from a text to its constituents; None, with a warning, without stanza.

    Args:
        language: Name of stanza's models, such as `"en"`, which `stanza.download` has fetched.
    """
    if find_spec("stanza") is None:
        log.warning("stanza is not installed: runs of words are masked, not constituents")
        return None
    import stanza

    processors = "tokenize,pos,constituency"
    pipeline = stanza.Pipeline(language, processors=processors, download_method=None, verbose=False)

    def parse(text: str) -> list[Span]:
        sentences: list[Any] = pipeline(text).sentences
        return [
            span
            for sentence in sentences
            for span in constituent_spans(
                sentence.constituency,
                [(word.parent.start_char, word.parent.end_char) for word in sentence.words],
            )
        ]

    return parse


def constituent_spans(tree: Tree, words: Sequence[Span]) -> list[Span]:
    """Return the distinct spans of the constituents of a sentence, words included, without itself.

    Args:
        tree: Parse tree of the sentence.
        words: Character span of each word.
    """
    spans = dict.fromkeys((words[a][0], words[b - 1][1]) for a, b in _ranges(tree, 0) if a < b)
    return [span for span in spans if span != (words[0][0], words[-1][1])]


def _ranges(tree: Tree, first: int) -> Iterator[tuple[int, int]]:
    """Yield first word, and the word after the last, of each constituent, children first."""
    end = first
    for child in tree.children:
        ranges = [*_ranges(child, end)]
        yield from ranges
        end = ranges[-1][1]
    yield (first, end if tree.children else first + 1)


def mask_constituents(
    constituents: Sequence[Span],
    words: Sequence[Span],
    random_: random.Random,
    share: tuple[float, float],
    max_spans: int,
) -> tuple[Span, ...]:
    """Draw constituents to mask, in order, with at least one word between them.

    Args:
        constituents: Character spans.
        words: Character spans of the words of the text.
        random_: Source of randomness.
        share: Smallest and largest share of the words to mask; the share is drawn uniformly.
        max_spans: Largest number of constituents.

    Returns:
        Spans with at most the drawn number of words; the shortest constituent if none has so few.
    """

    def inside(span: Span) -> list[int]:
        return [i for i, (start, end) in enumerate(words) if span[0] <= start and end <= span[1]]

    left = max(1, round(random_.uniform(*share) * len(words)))
    sized = [(len(inside(span)), span) for span in constituents]
    candidates = [span for size, span in sized if 0 < size <= left]
    if not candidates:
        return tuple(span for _, span in sorted(item for item in sized if item[0])[:1])
    random_.shuffle(candidates)
    chosen: list[Span] = []
    blocked: set[int] = set()
    for span in candidates:
        places = inside(span)
        if len(chosen) < max_spans and len(places) <= left and not blocked & {*places}:
            chosen.append(span)
            left -= len(places)
            blocked |= {*range(places[0] - 1, places[-1] + 2)}
    return tuple(sorted(chosen))
