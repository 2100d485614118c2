"""Word vectors: a text as the idf-weighted mean of its words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, isfinite
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ctrlreward.columns import shortened
from ctrlreward.text.words import split_words

log = logging.getLogger(__name__)

Vectors = npt.NDArray[np.float64]
Split = Callable[[str], Sequence[str]]


class WordVectors:
    """Sentence encoder of Pang & Gimpel (2019), who used GloVe vectors.

    Args:
        vectors: Vector of each word, all of the same width.
        idf: Weight of each word, 0 or more, from `inverse_document_frequency`; other words get the
            largest weight. None weights all words equally.
        split: Splits a text into words; `split_words` lowercases them, as GloVe does.

    Attributes:
        width: Width of the vectors.
        unseen: Weight of words without idf.

    Raises:
        TypeError: `vectors` is not a mapping.
        ValueError: There are no vectors, their widths differ, one is not finite, or a weight is
            negative.

    Examples:
        >>> vectors = WordVectors({"soup": [1, 0], "broth": [3, 4]})
        >>> vectors.embed(["Broth broth", "The soup"])
        array([[0.6, 0.8],
               [1. , 0. ]])
    """

    def __init__(
        self,
        vectors: Mapping[str, npt.ArrayLike],
        idf: Mapping[str, float] | None = None,
        split: Split = split_words,
    ) -> None:
        if not isinstance(vectors, Mapping):
            raise TypeError(
                f"vectors = {shortened(vectors)} is a {type(vectors).__name__}: give "
                "{word: vector}, or read a file with WordVectors.from_file"
            )
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
        """Read a text file in the GloVe or word2vec format: one word and its numbers per line.

        The first line may be a word2vec header (number of words, width). Words may contain spaces,
        as some in GloVe do. The first vector of a repeated word is kept.

        Args:
            path: The file.
            idf: See the class.
            split: See the class.
            words: Keeps only these words, for files larger than memory; None keeps all.

        Raises:
            OSError: The file cannot be read.
            ValueError: A line is not a word and as many numbers as in the other lines, the number
                of lines differs from the header, or none of `words` is in the file.
        """
        vectors: dict[str, npt.NDArray[np.float32]] = {}
        for place, word, numbers in _entries(Path(path).expanduser()):
            if word not in vectors and (words is None or word in words):
                vectors[word] = _parse(place, numbers)
        if not vectors:
            raise ValueError(f"{path} has no vector for any of the words: give other words or None")
        return cls(vectors, idf, split)

    def embed(
        self, texts: Sequence[str], name: Callable[[int], str] = "texts[{}]".format
    ) -> Vectors:
        """Return unit vectors along Σ idf(w) · v(w) over all words w of a text, with repetitions.

        Words without a vector are skipped.

        Args:
            texts: Texts to embed.
            name: Names the text at an index in warnings.

        Returns:
            Float64, shape (texts, width); NaN, with a warning, for a text in which no word has a
            vector and a weight above 0.
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
    """Yield the location, word and unparsed numbers of each line."""
    # Only "\n" ends a line, since words may contain other white space. A word that is not UTF-8
    # matches no text and does no harm.
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
        raise ValueError(
            f"{path}:1 announces {announced} words, but {count} follow: download the file again"
        )


def _shape(first: str) -> tuple[int | None, int]:
    """Return the number of words in a word2vec header, else None, and the width of the vectors."""
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
            raise ValueError(f"{place} has {number!r}, expected a finite number")
    return np.array(numbers, dtype=np.float32)


def _common_width(vectors: Mapping[str, npt.NDArray[np.float32]]) -> int:
    """Return the common width of all vectors."""
    if not vectors:
        raise ValueError("vectors is empty: give at least one")
    (width,) = next(iter(vectors.values())).shape
    for word, vector in vectors.items():
        if vector.shape != (width,):
            raise ValueError(
                f"vectors[{word!r}] has shape {vector.shape}, the first one ({width},): "
                "give vectors of the same width"
            )
        if not np.isfinite(vector).all():
            raise ValueError(f"vectors[{word!r}] has a value that is not finite")
    return width


def _rarest(idf: Mapping[str, float] | None) -> float:
    """Return the weight of words without idf: the largest one."""
    if idf is None:
        return 1.0
    for word, weight in idf.items():
        if not 0 <= weight < inf:
            raise ValueError(f"idf[{word!r}] = {weight}: give finite weights of 0 or more")
    if not idf:
        raise ValueError("idf is empty: give the weights of a corpus, or None")
    return max(idf.values())
