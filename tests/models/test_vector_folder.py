from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from ctrlreward.models import sources, wheels
from ctrlreward.models.sources import resolve
from ctrlreward.models.wheels import Wheel
from ctrlreward.models.word_vectors import WordVectors, vector_folder

WORDS = ["the", "soup", "\u2028", "a b"]
MATRIX = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def place_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, matrix: np.ndarray) -> None:
    """Put a wheel of vectors by hand and give it the short name `toy`."""
    file, npy, parquet = (cache / n for n in ("toy_vectors-1.0-py3-none-any.whl", "m.npy", "w.pq"))
    np.save(npy, matrix, allow_pickle=True)
    pyarrow.parquet.write_table(pyarrow.table({"index": WORDS}), parquet)
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(npy, "toy/data/matrix.npy")
        archive.write(parquet, "toy/data/words.parquet")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    wheel = Wheel("toy-vectors", "1.0", digest, "toy/data/")
    monkeypatch.setattr(sources, "VECTOR_NAMES", {"toy": wheel})


# The published wheel's matrix is in Fortran order.
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_wheel_becomes_a_folder(cache: Path, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    place_wheel(cache, monkeypatch, np.asarray(MATRIX, order=order))  # type: ignore[call-overload]
    found = WordVectors.load("toy").vectors
    assert list(found) == WORDS
    np.testing.assert_array_equal([*found.values()], MATRIX)
    folder = vector_folder("toy")
    assert folder == cache / "toy-1.0"
    assert {file.name for file in folder.iterdir()} == {"vectors.safetensors", "words.json"}
    assert (folder / "vectors.safetensors").stat().st_mode & 0o444 == 0o444
    with pytest.raises(ValueError, match="model"):
        resolve("toy")


def test_no_pickle_is_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_wheel(cache, monkeypatch, np.array([["pickled"]] * 4, dtype=object))
    with pytest.raises(ValueError, match="Python objects"):
        vector_folder("toy")
    assert not (cache / "toy-1.0").exists()


def test_without_pyarrow_nothing_is_downloaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "fetch", lambda *_, **__: pytest.fail("a download"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"ctrlreward\[parquet\]"):
        vector_folder("glove-6b-50d")


@pytest.mark.parametrize("name", ["", "minilm-l6", "gpt2", "/no/such/folder"])
def test_other_names(name: str) -> None:
    assert vector_folder(name) is None
