"""Inverse document frequency: how much a word says of the text that it stands in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import log


def inverse_document_frequency(documents: Iterable[Iterable[str]]) -> dict[str, float]:
    """idf(w) = log(N / df(w)), natural logarithm, without smoothing.

    This is the weight of a word in the similarity of Pang & Gimpel (2019),
    https://arxiv.org/abs/1810.11878, whose documents are the sentences of both styles. A word of
    every document weighs 0.

    Args:
        documents: The words of each of N documents, read once.

    Returns:
        idf of each word that occurs, 0 to log(N).

    Raises:
        TypeError: A document is a string, whose letters would be taken for words.
        ValueError: There is no document.
    """
    counts: Counter[str] = Counter()
    total = 0
    for total, words in enumerate(documents, 1):
        if isinstance(words, str):
            raise TypeError(f"documents[{total - 1}] = {words[:40]!r} is a str: give its words")
        counts.update(set(words))
    if total == 0:
        raise ValueError("the corpus has no documents: give at least one")
    return {word: log(total / count) for word, count in counts.items()}
