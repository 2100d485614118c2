"""Kinds of training pairs of CTC (appendix A): which text is altered, and what supports it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeAlias

import networkx

from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.recipes.text_files import (
    WORD,
    matching_key,
    read_held_out,
    read_lines,
    sample_texts,
)
from ctrlreward.scorers.alignment import SEPARATOR

PairKind: TypeAlias = Literal["transfer", "summary", "reference", "dialog", "dialog_fact"]


class Example(NamedTuple):
    """A text and what supports all of its words.

    Attributes:
        text: Text that is paraphrased and refilled.
        context: Text that b is in its pairs.
    """

    text: str
    context: str


class Kind(NamedTuple):
    """A kind of pairs.

    Attributes:
        keys: Keys of a record that are read, the one of the altered text first; empty if a row is
            a text, not a record.
        example: Returns the example of the values at the keys, or of the text.
    """

    keys: tuple[str, ...]
    example: Callable[[Sequence[str], random.Random], Example]


def textrank(document: str, count: int) -> str:
    """Return the sentences of a document with the highest TextRank, in their order.

    Mihalcea and Tarau (2004), https://aclanthology.org/W04-3252: PageRank of the sentences, linked
    by their common words over the sum of the logarithms of their lengths, without stop words.

    Args:
        document: The document.
        count: Number of sentences; a shorter document is returned unchanged.
    """
    sentences = split_sentences(document)
    words = [
        {word for word in WORD.findall(sentence.lower()) if word not in ENGLISH_STOP_WORDS}
        for sentence in sentences
    ]
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(sentences)))
    for i, j in combinations(range(len(sentences)), 2):
        if common := len(words[i] & words[j]):
            # The logarithms of two sentences of one word sum to 0.
            length = max(math.log(len(words[i])) + math.log(len(words[j])), math.log(2))
            graph.add_edge(i, j, weight=common / length)
    ranks = networkx.pagerank(graph)
    best = sorted(sorted(ranks, key=lambda i: -ranks[i])[:count])
    return " ".join(sentences[i] for i in best)


def _itself(row: Sequence[str], _: random.Random) -> Example:
    return Example(row[0], row[0])


def _summary(row: Sequence[str], random_: random.Random) -> Example:
    return Example(textrank(row[0], random_.randint(1, 3)), row[0])


def _dialog(row: Sequence[str], _: random.Random) -> Example:
    response, *context = row
    return Example(response, SEPARATOR.join(context))


def _facts(row: Sequence[str], random_: random.Random) -> Example:
    facts = [fact for line in row[0].splitlines() for fact in split_sentences(line)]
    count = min(random_.randint(1, 3), len(facts))
    chosen = sorted(random_.sample(range(len(facts)), count))
    return Example(" ".join(facts[i] for i in chosen), row[0])


# The released aligners of a task are trained on one kind each: preservation on `transfer`,
# consistency on `summary`, the references' half of relevance on `reference`, engagingness on
# `dialog`, groundedness on `dialog_fact`.
KINDS: Mapping[PairKind, Kind] = {
    "transfer": Kind((), _itself),
    "summary": Kind((), _summary),
    "reference": Kind(("reference",), _itself),
    "dialog": Kind(("text", "context", "history"), _dialog),
    "dialog_fact": Kind(("context",), _facts),
}


def sample_rows(
    kind: PairKind,
    files: Sequence[str],
    exclude: Sequence[str],
    count: int,
    min_words: int,
    seed: int,
) -> list[tuple[str, ...]]:
    """Draw distinct rows from files, without held-out ones: the values at the keys of the kind.

    Args:
        kind: Kind of the pairs.
        files: Files of one text per line, or of one JSON record per line for a kind with keys.
        exclude: Files of held-out texts; a row with one of them at a key is left out.
        count: Number of rows.
        min_words: Smallest number of words of the altered text, or of its source.
        seed: Seed of the choice and its order.

    Raises:
        ValueError: The files contain fewer than `count` such rows, or a line is not a record with
            the keys.
    """
    keys = KINDS[kind].keys
    if not keys:
        texts = sample_texts(files, exclude, count, (min_words, None), seed)
        return [(text,) for text in texts]
    held_out = read_held_out(exclude)
    rows = [
        row
        for row in dict.fromkeys(_values(line, keys, kind) for line in read_lines(files))
        if len(WORD.findall(row[0])) >= min_words
        and not any(matching_key(value) in held_out for value in row)
    ]
    if len(rows) < count:
        raise ValueError(
            f"{', '.join(files)}: {len(rows)} records of {min_words} words or more, fewer than "
            f"{count}. Add files, or use a smaller number."
        )
    return random.Random(seed).sample(rows, count)


def _values(line: str, keys: Sequence[str], kind: PairKind) -> tuple[str, ...]:
    try:
        record: Any = json.loads(line)
        values = tuple(record[key] for key in keys)
        if not all(isinstance(value, str) for value in values):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            f"{line.strip()[:40]!r} must be a JSON record with a string for {', '.join(keys)}, as "
            f"kind {kind!r} reads"
        ) from None
    return values
