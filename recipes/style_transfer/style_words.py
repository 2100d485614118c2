"""Words that tell two styles apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log


def word_log_odds(first: Sequence[str], second: Sequence[str]) -> dict[str, float]:
    """Return by how much likelier a sentence of the second corpus has a word, as a logarithm.

    Args:
        first: Sentences of one style, words separated by spaces.
        second: Sentences of the other.

    Returns:
        Word → log of the ratio of the shares of sentences that have it, each with one sentence with
        and one without it added; above 0 where the second corpus has it more often.

    Examples:
        >>> odds = word_log_odds(["cold soup"] * 8, ["warm soup"] * 8)
        >>> {word: round(value, 2) for word, value in odds.items()}
        {'cold': -2.2, 'soup': 0.0, 'warm': 2.2}
    """
    counts = [
        Counter(w for text in corpus for w in dict.fromkeys(text.split()))
        for corpus in (first, second)
    ]
    shares = [
        {word: (found[word] + 1) / (len(corpus) + 2) for word in counts[0] | counts[1]}
        for found, corpus in zip(counts, (first, second), strict=True)
    ]
    return {word: log(shares[1][word] / share) for word, share in shares[0].items()}
