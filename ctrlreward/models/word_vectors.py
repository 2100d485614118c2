"""Word vectors: a text as the idf-weighted mean of its words."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import kind_of
from ctrlreward.files import whole_folder
from ctrlreward.items import item_logger
from ctrlreward.samples import shortened
from ctrlreward.text.words import split_words_and_marks
from ctrlreward.weights.sources import VECTOR_NAMES, resolve_vectors
from ctrlreward.weights.vector_folder import holds_vectors, read_vectors, write_vectors

log = item_logger(__name__)

Matrix = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float64]
Split = Callable[[str], Sequence[str]]


class WordMatrix(Mapping[str, Matrix]):
    """Vectors of distinct words, the rows of a float32 array, which may be mapped from a file."""

    def __init__(self, words: Iterable[str], matrix: Matrix) -> None:
        self.matrix = matrix
        self.row_of = {word: row for row, word in enumerate(words)}

    def __getitem__(self, word: str) -> Matrix:
        return self.matrix[self.row_of[word]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.row_of)

    def __len__(self) -> int:
        return len(self.row_of)


class WordVectors:
    """Sentence encoder of Pang & Gimpel (2019), §3.2, https://arxiv.org/abs/1810.11878.

    A text is the mean of its words' vectors, weighted by their idf. The cosine of unrelated
    sentences is about 0.8.

    Args:
        vectors: Vector of each word, all of the same width.
        idf: Weight of each word, 0 or more, from `inverse_document_frequency`; other words get the
            largest weight. None weights all words equally.
        split: Splits a text into words; by default in lower case and apart from punctuation.

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
        split: Split = split_words_and_marks,
    ) -> None:
        if not isinstance(vectors, Mapping):
            raise TypeError(
                f"vectors must be a mapping, word → vector, got {shortened(vectors)}, "
                f"{kind_of(vectors)}. Read a file with WordVectors.from_file, or a name with "
                "WordVectors.load."
            )
        self.vectors = vectors if isinstance(vectors, WordMatrix) else _matrix_of(vectors)
        self.width = int(self.vectors.matrix.shape[1])
        if idf is not None and not idf:
            raise ValueError("idf is empty, must be the weights of a corpus, or None")
        self.idf = idf or {}
        for word, weight in self.idf.items():
            if not 0 <= weight < inf:
                raise ValueError(f"idf[{word!r}] must be finite and 0 or more, got {weight}")
        self.unseen = max(self.idf.values(), default=1.0)
        self.split = split

    @classmethod
    def load(
        cls,
        name: str | PathLike[str],
        idf: Mapping[str, float] | None = None,
        split: Split = split_words_and_marks,
    ) -> WordVectors:
        """Load `"glove-6b-50d"`, or a folder written by `save`; `idf` of None keeps its weights.

        The short name is Stanford's GloVe of 400,000 words in 50 dimensions (PDDL 1.0), downloaded
        on first use (76 MB).

        Raises:
            ValueError: The name is unknown, or the folder is damaged.
            OSError: The download failed.
            ImportError: The first use of a short name needs the package pyarrow.
        """
        folder = resolve_vectors(str(name))
        if folder is None:
            raise ValueError(
                f"name = {str(name)!r} is not a set of word vectors, must be a folder written by "
                f"WordVectors.save, or {' or '.join(VECTOR_NAMES)}. Read a text file with "
                "WordVectors.from_file."
            )
        words, matrix, own_idf = read_vectors(folder)
        return cls(WordMatrix(words, matrix), own_idf if idf is None else idf, split)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write vectors and idf, but not `split`, as a folder for `load` and `Similarity`.

        A ValueError if the folder exists and contains something else.
        """
        path = Path(folder).expanduser()
        if path.exists() and not holds_vectors(path) and (path.is_file() or [*path.iterdir()]):
            raise ValueError(
                f"folder = {str(folder)!r} contains something else, must be a new folder"
            )
        with whole_folder(path) as unfinished:
            matrix = self.vectors.matrix
            write_vectors(unfinished, [*self.vectors], matrix, self.idf or None)

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        idf: Mapping[str, float] | None = None,
        split: Split = split_words_and_marks,
        words: Container[str] | None = None,
    ) -> WordVectors:
        """Read a text file in the GloVe or word2vec format: one word and its numbers per line.

        The first line may be a word2vec header. Words may contain spaces, as in GloVe. The first
        vector of a repeated word is kept. `words` keeps only these, for files larger than memory.

        Raises:
            OSError: The file cannot be read.
            ValueError: A line has another number of numbers, the number of lines differs from the
                header, or none of `words` is in the file.
        """
        vectors: dict[str, Matrix] = {}
        for place, word, numbers in _entries(Path(path).expanduser()):
            if word not in vectors and (words is None or word in words):
                try:
                    vectors[word] = np.array(numbers, dtype=np.float32)
                except ValueError as error:
                    raise ValueError(f"{place}: {error}, expected finite numbers") from error
                if not np.isfinite(vectors[word]).all():
                    raise ValueError(f"{place} has {numbers}, expected finite numbers")
        if not vectors:
            raise ValueError(f"{path} has no vector for any of the words. Use other words or None.")
        return cls(vectors, idf, split)

    def embed(
        self, texts: Sequence[str], name: Callable[[int], str] = "texts[{}]".format
    ) -> Vectors:
        """Return unit vectors along Σ idf(w) · v(w) over all words w of a text, with repetitions.

        Words without a vector are skipped. NaN, with a warning, for a text in which no word has a
        vector and a weight above 0. Float64, shape (texts, width).
        """
        units = np.full((len(texts), self.width), np.nan)
        for i, text in enumerate(texts):
            total = self.sum(text)
            if length := np.linalg.norm(total):
                units[i] = total / length
            else:
                log.warning(
                    "%s = %r has no word with a vector and a weight: its embedding is NaN",
                    *(name(i), text[:40]),
                )
        return units

    def sum(self, text: str) -> Vectors:
        """Return Σ idf(w) · v(w) over the words of a text, shape (width,)."""
        row_of = self.vectors.row_of
        words = [word for word in self.split(text) if word in row_of]
        weights = np.array([self.idf.get(word, self.unseen) for word in words])
        rows = self.vectors.matrix[[row_of[word] for word in words]]
        return weights @ rows.reshape(-1, self.width)


def _matrix_of(vectors: Mapping[str, npt.ArrayLike]) -> WordMatrix:
    rows = {word: np.asarray(vector, dtype=np.float32) for word, vector in vectors.items()}
    if not rows:
        raise ValueError("vectors is empty, must have at least one")
    (width,) = next(iter(rows.values())).shape
    for word, row in rows.items():
        if row.shape != (width,):
            raise ValueError(
                f"vectors[{word!r}] has shape {row.shape}, the first one ({width},), "
                "must be of the same width"
            )
        if not np.isfinite(row).all():
            raise ValueError(f"vectors[{word!r}] has a value that is not finite")
    return WordMatrix(rows, np.stack([*rows.values()]))


def _entries(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the location, word and unparsed numbers of each line."""
    # Only "\n" ends a line, since words may contain other white space. A word that is not UTF-8
    # matches no text.
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        first = file.readline()
        fields = first.rstrip(" \r\n").split(" ")
        announced, width, count = None, max(1, len(fields) - 1), 0
        if len(fields) == 2 and all(field.isdigit() for field in fields):  # a word2vec header
            announced, width = int(fields[0]), int(fields[1])
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
