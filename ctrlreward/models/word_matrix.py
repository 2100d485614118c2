"""Matrix of word vectors, as a mapping of the words to its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]


class WordMatrix(Mapping[str, Matrix]):
    """Vectors of many words in one array, which may be mapped from a file.

    Args:
        words: Distinct words, in the order of the rows.
        matrix: Their vectors, float32 of shape (words, width), finite.
    """

    def __init__(self, words: Sequence[str], matrix: Matrix) -> None:
        self.matrix = matrix
        self._row = {word: row for row, word in enumerate(words)}

    @classmethod
    def of(cls, vectors: Mapping[str, npt.ArrayLike]) -> WordMatrix:
        """Copy the vectors of a mapping.

        Raises:
            ValueError: There are no vectors, their widths differ, or one is not finite.
        """
        rows = {word: np.asarray(vector, dtype=np.float32) for word, vector in vectors.items()}
        if not rows:
            raise ValueError("vectors is empty: give at least one")
        (width,) = next(iter(rows.values())).shape
        for word, row in rows.items():
            if row.shape != (width,):
                raise ValueError(
                    f"vectors[{word!r}] has shape {row.shape}, the first one ({width},): "
                    "give vectors of the same width"
                )
            if not np.isfinite(row).all():
                raise ValueError(f"vectors[{word!r}] has a value that is not finite")
        return cls([*rows], np.stack([*rows.values()]))

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return int(self.matrix.shape[1])

    def rows(self, words: Sequence[str]) -> Matrix:
        """Return the vectors of some words, a copy of shape (words, width)."""
        return self.matrix[[self._row[word] for word in words]].reshape(-1, self.width)

    def __getitem__(self, word: str) -> Matrix:
        """Return the vector of a word, shape (width,)."""
        return self.matrix[self._row[word]]

    def __contains__(self, word: object) -> bool:
        """Return true for a word that has a vector."""
        return word in self._row

    def __iter__(self) -> Iterator[str]:
        """Iterate over the words."""
        return iter(self._row)

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self._row)
