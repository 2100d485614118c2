"""Word vectors from a file: a text as the idf-weighted mean of its words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, isfinite
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ctrlreward.text.words import split_words

log = logging.getLogger(__name__)

Vectors = npt.NDArray[np.float64]
Split = Callable[[str], Sequence[str]]


class WordVectors:
    """The sentence encoder of Pang & Gimpel (2019), whose vectors were GloVe's.

    Args:
        vectors: Each word's vector, all of one width.
        idf: Each word's weight, 0 or more, as `inverse_document_frequency` gives it; a word that
            it lacks is taken to be as rare as its rarest. None weighs all words the same.
        split: Gives the words of a text; `split_words` lowers their case, as GloVe's are.

    Attributes:
        width: Of the vectors.
        unseen: The weight of words that `idf` lacks.

    Raises:
        ValueError: There are no vectors, their widths differ, one is not finite, or a weight is
            negative.
    """

    def __init__(
        self,
        vectors: Mapping[str, npt.ArrayLike],
        idf: Mapping[str, float] | None = None,
        split: Split = split_words,
    ) -> None:
        self.vectors = {w: np.asarray(v, dtype=np.float32) for w, v in vectors.items()}
        self.width = _common_width(self.vectors)
        self.idf = idf or {}
        self.unseen = _rarest(idf)
        self.split = split

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        idf: Mapping[str, float] | None = None,
        split: Split = split_words,
        words: Container[str] | None = None,
    ) -> WordVectors:
        """Reads a text file of GloVe or word2vec: a word and its numbers a line.

        The first line may be word2vec's, how many words and numbers follow. A word may hold
        spaces, as some of GloVe's do. Of a word that stands there twice the first vector is kept.

        Args:
            path: The file.
            idf: See the class.
            split: See the class.
            words: Keeps only these, so that a file larger than memory can be read; None keeps
                all.

        Raises:
            OSError: The file can't be read.
            ValueError: A line is not a word with as many numbers as the others, the file has
                fewer or more lines than its first says, or none of `words` is in it.
        """
        vectors: dict[str, npt.NDArray[np.float32]] = {}
        for place, word, numbers in _entries(Path(path).expanduser()):
            if word not in vectors and (words is None or word in words):
                vectors[word] = _parse(place, numbers)
        if not vectors:
            raise ValueError(f"{path} has vectors of none of the words: give other words or None")
        return cls(vectors, idf, split)

    def embed(
        self, texts: Sequence[str], name: Callable[[int], str] = "texts[{}]".format
    ) -> Vectors:
        """Unit vectors along Σ idf(w) · v(w) over the words of a text, each time that they occur.

        A word without a vector is left out.

        Args:
            texts: Any number.
            name: What a warning calls the text at a place.

        Returns:
            Float64, shape (texts, width); NaN, with a warning, for a text of whose words none has
            both a vector and a weight.
        """
        sums = np.zeros((len(texts), self.width))
        for i, text in enumerate(texts):
            for word in self.split(text):
                if word in self.vectors:
                    weight = self.idf.get(word, self.unseen)
                    sums[i] += weight * self.vectors[word].astype(np.float64)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        for i in map(int, np.flatnonzero(lengths == 0)):
            log.warning(
                "%s = %r has no word with a vector and a weight: its embedding is NaN",
                *(name(i), texts[i][:40]),
            )
        return np.divide(sums, lengths, out=np.full_like(sums, np.nan), where=lengths > 0)


def _entries(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Each line's place, word and numbers, which are not parsed yet."""
    # Only "\n" ends a line, for words may hold other kinds of white space. A word that is not
    # UTF-8 matches no text, so it does no harm.
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        first = file.readline()
        announced, width = _shape(first)
        count = 0
        for line in chain([first] if announced is None else [], file):
            count += 1
            place = f"{path}:{count if announced is None else count + 1}"
            word, *numbers = line.rstrip(" \r\n").rsplit(" ", width)
            if len(numbers) != width:
                raise ValueError(
                    f"{place} = {line[:40]!r}: expected a word and {width} numbers, one space apart"
                )
            yield place, word, numbers
    if announced is not None and count != announced:
        raise ValueError(f"{path}:1 announces {announced} words and {count} follow: get it anew")


def _shape(first: str) -> tuple[int | None, int]:
    """How many words the first line announces, if it does, and how many numbers a word has."""
    fields = first.rstrip(" \r\n").split(" ")
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return int(fields[0]), int(fields[1])
    return None, max(1, len(fields) - 1)


def _parse(place: str, numbers: list[str]) -> npt.NDArray[np.float32]:
    for number in numbers:
        try:
            finite = isfinite(float(number))
        except ValueError:
            finite = False
        if not finite:
            raise ValueError(f"{place} has {number!r} where a finite number was expected")
    return np.array(numbers, dtype=np.float32)


def _common_width(vectors: Mapping[str, npt.NDArray[np.float32]]) -> int:
    """The width of all vectors."""
    if not vectors:
        raise ValueError("vectors is empty: give at least one word's")
    (width,) = next(iter(vectors.values())).shape
    for word, vector in vectors.items():
        if vector.shape != (width,):
            raise ValueError(
                f"vectors[{word!r}] has the shape {vector.shape} and others ({width},): "
                "give all words vectors of one width"
            )
        if not np.isfinite(vector).all():
            raise ValueError(f"vectors[{word!r}] holds a number that is not finite")
    return width


def _rarest(idf: Mapping[str, float] | None) -> float:
    """The weight of a word that the corpus lacks."""
    if idf is None:
        return 1.0
    for word, weight in idf.items():
        if not 0 <= weight < inf:
            raise ValueError(f"idf[{word!r}] = {weight}: give finite weights of 0 or more")
    if not idf:
        raise ValueError("idf is empty: give the weights of a corpus, or None")
    return max(idf.values())
