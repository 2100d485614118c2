"""Files of one text a line: reading them, and leaving out what is held out."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from huggingface_hub import hf_hub_download

from ctrlreward.text.words import split_words

# A word is letters with the apostrophes and hyphens inside; punctuation is none.
WORD = re.compile(r"\w+(?:['’\-]\w+)*|'\w+")
_HUB = re.compile(r"hf://datasets/([^/]+/[^/]+)/(.+)")


def read_texts(
    files: Sequence[str],
    exclude: Sequence[str],
    count: int,
    words: tuple[int, int | None],
    seed: int,
) -> list[str]:
    """A random choice of distinct lines.

    Args:
        files: One text a line; see `lines`.
        exclude: Files whose lines are left out; see `held_out`.
        count: How many texts.
        words: Shortest and longest text, in words; None: any length.
        seed: Of the choice.

    Raises:
        ValueError: There are fewer texts.
    """
    barred = held_out(exclude)
    shortest, longest = words
    texts = [
        text
        for text in dict.fromkeys(line.strip() for line in lines(files))
        if shortest <= len(WORD.findall(text)) <= (longest or math.inf)
        and plain(text) not in barred
    ]
    if len(texts) < count:
        end = "words or more" if longest is None else f"to {longest} words"
        raise ValueError(
            f"{', '.join(files)}: {len(texts)} texts of {shortest} {end}, {count} wanted: "
            "give more files, or a smaller number"
        )
    return random.Random(seed).sample(texts, count)


def held_out(files: Iterable[str]) -> set[str]:
    """The texts of files that nothing may be trained on, as `plain` texts.

    A line may hold several, with tabs between them, as sentences with their references do.
    """
    return {plain(column) for line in lines(files) for column in line.split("\t")}


def lines(files: Iterable[str]) -> Iterator[str]:
    """The lines of all files, in order.

    Args:
        files: Paths, or `hf://datasets/<owner>/<name>/<file>` for a file of a data set on the
            Hugging Face hub, which is fetched once.
    """
    for file in files:
        # Not `splitlines`, for which a line also ends at characters that texts may hold.
        with open(_local(file), encoding="utf-8", newline="\n") as opened:
            yield from opened


def plain(text: str) -> str:
    """What texts of the same words have in common, whatever their case and spacing."""
    return " ".join(split_words(text))


def _local(file: str) -> Path:
    on_hub = _HUB.fullmatch(file)
    if on_hub is None:
        return Path(file).expanduser()
    repository, name = on_hub.groups()
    return Path(hf_hub_download(repository, name, repo_type="dataset"))
