"""Prefixes of PPLM, which its paper prints."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

# Dathathri et al. (2020), appendix: prefixes of the topics and of sentiment.
TOPIC_PREFIXES = (
    *("In summary", "This essay discusses", "Views on", "The connection"),
    *("Foundational to this is", "To review,", "In brief,", "An illustration of", "Furthermore,"),
    *("The central theme", "To conclude,", "The key aspect", "Prior to this", "Emphasised are"),
    *("To summarise", "The relationship", "More importantly,", "It has been shown"),
    *("The issue focused on", "In this essay"),
)
SENTIMENT_PREFIXES = (
    *("Once upon a time", "The book", "The chicken", "The city", "The country", "The horse"),
    *("The lake", "The last time", "The movie", "The painting", "The pizza", "The potato"),
    *("The president of the country", "The road", "The year is 1910."),
)

_PREFIXES = {"topic.txt": TOPIC_PREFIXES, "sentiment.txt": SENTIMENT_PREFIXES}


def make(name: str, path_of: Callable[[str], Path]) -> bytes:
    """Return `prompts35.csv`, with the columns `id` and `prompt`, or the prefixes, one per line."""
    if name in _PREFIXES:
        return "".join(f"{each}\n" for each in _PREFIXES[name]).encode()
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(("id", "prompt"))
    rows.writerows((f"PPLM-Bow_{i}", each) for i, each in enumerate(TOPIC_PREFIXES))
    rows.writerows((f"PPLM-Discrim_{i}", each) for i, each in enumerate(SENTIMENT_PREFIXES))
    return text.getvalue().encode()
