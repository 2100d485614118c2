from __future__ import annotations

import hashlib
import math
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models import sources
from ctrlreward.models.sources import resolve
from ctrlreward.models.wheels import Wheel
from ctrlreward.models.word_vectors import WordVectors

VECTORS = {"the": [1.0, 0.0, 0.5], "food": [0.0, 2.0, 1.0], "good": [-1.0, 1.0, 0.25]}
IDF = {"the": 0.0, "food": 1.5, "rare": 3.0}


def by_hand(text: str, idf: dict[str, float] | None) -> list[float]:
    """The paper's sentence embedding in plain Python."""
    mean = [0.0, 0.0, 0.0]
    for word in text.lower().split():
        if word in VECTORS:
            weight = 1.0 if idf is None else idf.get(word, 3.0)
            mean = [m + weight * v for m, v in zip(mean, VECTORS[word], strict=True)]
    length = math.sqrt(sum(m * m for m in mean))
    return [m / length if length else math.nan for m in mean]


texts = st.lists(st.sampled_from(["the", "Food", "GOOD", "lake"]), max_size=6).map(" ".join)


@given(st.lists(texts, max_size=4), st.sampled_from([None, IDF]))
def test_equals_plain_loops(texts: list[str], idf: dict[str, float] | None) -> None:
    vectors = WordVectors(VECTORS, idf).embed(texts)
    assert vectors.dtype == np.float64
    expected = np.array([by_hand(text, idf) for text in texts]).reshape(-1, 3)
    np.testing.assert_allclose(vectors, expected, atol=1e-12)


def test_words_are_apart_from_punctuation() -> None:
    vectors = {"food": [1.0, 0.0], "!": [0.0, 1.0], "great": [0.0, 0.0]}
    np.testing.assert_allclose(WordVectors(vectors).embed(["Great FOOD!"]), [[math.sqrt(0.5)] * 2])


# Folders


@pytest.mark.parametrize("idf", [None, IDF], ids=["equal", "idf"])
def test_a_folder_goes_round(tmp_path: Path, idf: dict[str, float] | None) -> None:
    vectors = WordVectors(VECTORS, idf)
    for _ in range(2):  # it replaces itself
        vectors.save(tmp_path / "saved")
    found = WordVectors.load(tmp_path / "saved")
    assert (found.idf, found.unseen) == (vectors.idf, vectors.unseen)
    texts = ["the food", "good food lake", "Good"]
    np.testing.assert_array_equal(found.embed(texts), vectors.embed(texts))
    assert WordVectors.load(tmp_path / "saved", {"food": 2.0}).idf == {"food": 2.0}
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="folder"):
        vectors.save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_glove_is_mapped_from_its_file() -> None:
    glove = WordVectors.load("glove-6b-50d")
    assert glove.matrix.shape == (400_000, 50)
    assert [*glove.rows][:3] == ["the", ",", "."]
    # The first numbers of the published text file.
    assert glove.matrix[0, :4] == pytest.approx([0.418, 0.24968, -0.41242, 0.1217])
    assert not glove.matrix.flags.owndata
    king, man, woman, queen, soup = glove.embed(["king", "man", "woman", "queen", "soup"])
    assert (king - man + woman) @ queen > (king - man + woman) @ soup + 0.5
    with pytest.raises(ValueError, match="model"):
        resolve("glove-6b-50d")


WORDS = ["the", "soup", "\u2028", "a b"]
MATRIX = np.arange(8, dtype=np.float32).reshape(4, 2)


# The published wheel's matrix is in Fortran order.
@pytest.mark.parametrize("matrix", [MATRIX, np.asfortranarray(MATRIX), np.array([["x"]], object)])
def test_a_wheel_becomes_a_folder_without_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: np.ndarray
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path))
    wheel = tmp_path / "toy_vectors-1.0-py3-none-any.whl"
    np.save(tmp_path / "m.npy", matrix, allow_pickle=True)
    pyarrow.parquet.write_table(pyarrow.table({"index": WORDS}), tmp_path / "w.pq")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "m.npy", "toy/data/matrix.npy")
        archive.write(tmp_path / "w.pq", "toy/data/words.parquet")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    names = {"toy": Wheel("toy-vectors", "1.0", digest, "toy/data/")}
    monkeypatch.setattr(sources, "VECTOR_NAMES", names)
    if matrix.dtype == object:
        with pytest.raises(ValueError, match="Python objects"):
            WordVectors.load("toy")
        assert not (tmp_path / "toy-1.0").exists()
        return
    found = WordVectors.load("toy")
    assert [*found.rows] == WORDS
    np.testing.assert_array_equal(found.matrix, MATRIX)
    assert (tmp_path / "toy-1.0" / "vectors.safetensors").stat().st_mode & 0o444 == 0o444
