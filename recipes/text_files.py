"""Files of one text per line, the exclusion of held-out texts, and splits."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ctrlreward.models.words import split_words
from ctrlreward.recipes.data_sets import local_file

Text = TypeVar("Text", str, int)

# Letters and digits, with apostrophes and hyphens inside; punctuation is not a word.
WORD = re.compile(r"\w+(?:['’\-]\w+)*|'\w+")


def sample_texts(
    files: Sequence[str],
    exclude: Sequence[str],
    count: int,
    words: tuple[int, int | None],
    seed: int,
) -> list[str]:
    """Draw distinct texts from files, without held-out ones.

    Args:
        files: Files of one text per line; see `read_lines`.
        exclude: Files of held-out texts; see `read_held_out`.
        count: Number of texts.
        words: Smallest and largest number of words of a text; None for no upper limit.
        seed: Seed of the choice and its order.
    """
    texts = distinct_texts(files, exclude, words)
    if len(texts) < count:
        raise ValueError(
            f"{', '.join(files)} must have {count} texts of {words} words, got {len(texts)}"
        )
    return random.Random(seed).sample(texts, count)


def distinct_texts(
    files: Sequence[str], exclude: Sequence[str], words: tuple[int, int | None]
) -> list[str]:
    """Return the distinct texts of files, without held-out ones; see `sample_texts`."""
    held_out = read_held_out(exclude)
    shortest, longest = words
    return [
        text
        for text in dict.fromkeys(line.strip() for line in read_lines(files))
        if shortest <= len(WORD.findall(text)) <= (longest or math.inf)
        and matching_key(text) not in held_out
    ]


def read_held_out(files: Iterable[str]) -> set[str]:
    """Return the `matching_key` of each text of the files.

    A line may contain several texts separated by tabs, such as a sentence and its references.
    """
    return {matching_key(column) for line in read_lines(files) for column in line.split("\t")}


def read_lines(files: Iterable[str]) -> Iterator[str]:
    """Yield the lines of all files, in order, with their line ends.

    Args:
        files: Paths, or files of data sets such as `yelp-shen/sentiment.dev.0`; see `local_file`.
    """
    for file in files:
        # Not `splitlines`, which also splits at characters that texts may contain.
        with open(local_file(file), encoding="utf-8", newline="\n") as opened:
            yield from opened


def matching_key(text: str) -> str:
    """Return a form of the text that is equal for texts that differ only in case and spacing."""
    return " ".join(split_words(text))


def split_off(
    texts: list[Text], share: float, seed: int, files: Sequence[str]
) -> tuple[list[Text], list[Text]]:
    """Return distinct texts, or their numbers, for training and for validation, in random order.

    `share` is the share for validation; both splits get one text or more. `files` are named in the
    error.
    """
    if not 0 < share < 1:
        raise ValueError(f"validation_share must be between 0 and 1, exclusive, got {share}")
    if len(texts) < 2:
        raise ValueError(
            f"{', '.join(files)} must have two texts or more that are not held out, got "
            f"{len(texts)}"
        )
    shuffled = list(texts)
    random.Random(seed).shuffle(shuffled)
    count = min(max(1, round(share * len(texts))), len(texts) - 1)
    return shuffled[count:], shuffled[:count]
