from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models import sources
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


# Embeddings

texts = st.lists(st.sampled_from(["the", "Food", "GOOD", "lake"]), max_size=6).map(" ".join)


@given(st.lists(texts, max_size=4), st.sampled_from([None, IDF]))
def test_equals_plain_loops(texts: list[str], idf: dict[str, float] | None) -> None:
    vectors = WordVectors(VECTORS, idf).embed(texts)
    assert vectors.dtype == np.float64
    assert vectors.shape == (len(texts), 3)
    expected = np.array([by_hand(text, idf) for text in texts]).reshape(-1, 3)
    np.testing.assert_allclose(vectors, expected, atol=1e-12)


def test_a_text_without_a_known_word_is_nan() -> None:
    vectors = WordVectors(VECTORS, IDF).embed(["the", "food", "Lake !"])
    np.testing.assert_array_equal(np.isnan(vectors).all(axis=1), [True, False, True])


# Folders


@pytest.mark.parametrize("idf", [None, IDF], ids=["equal", "idf"])
def test_a_folder_goes_round(tmp_path: Path, idf: dict[str, float] | None) -> None:
    vectors = WordVectors(VECTORS, idf)
    vectors.save(tmp_path / "saved")
    vectors.save(tmp_path / "saved")  # replaces itself
    found = WordVectors.load(tmp_path / "saved")
    assert {word: v.tolist() for word, v in found.vectors.items()} == VECTORS
    assert (found.idf, found.unseen) == (vectors.idf, vectors.unseen)
    texts = ["the food", "good food lake", "Good"]
    np.testing.assert_array_equal(found.embed(texts), vectors.embed(texts))


def test_a_folder_takes_another_idf(tmp_path: Path) -> None:
    vectors = WordVectors(VECTORS, IDF)
    vectors.save(tmp_path / "raw")
    assert WordVectors.load(tmp_path / "raw", {"food": 2.0}).idf == {"food": 2.0}


def test_a_folder_that_holds_something_else_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="folder"):
        WordVectors(VECTORS).save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    WordVectors(VECTORS).save(tmp_path / "empty")


@pytest.mark.parametrize("name", ["glove", "no/such/folder", ""])
def test_a_name_of_no_vectors(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        WordVectors.load(name)


def test_glove_is_mapped_from_its_file() -> None:
    glove = WordVectors.load("glove-6b-50d")
    assert (len(glove.vectors), glove.width) == (400_000, 50)
    assert [*glove.vectors][:3] == ["the", ",", "."]
    # The first numbers of the published text file.
    assert glove.vectors["the"][:4] == pytest.approx([0.418, 0.24968, -0.41242, 0.1217])
    assert not glove.vectors.matrix.flags.owndata
    king, man, woman, queen, soup = glove.embed(["king", "man", "woman", "queen", "soup"])
    assert (king - man + woman) @ queen > (king - man + woman) @ soup + 0.5
    assert "glove-6b-50d" not in sources.SHORT_NAMES


def test_words_are_apart_from_punctuation_or_split_by_the_user() -> None:
    vectors = {"food": [1.0, 0.0], "!": [0.0, 1.0], "great": [0.0, 0.0]}
    np.testing.assert_allclose(WordVectors(vectors).embed(["Great FOOD!"]), [[math.sqrt(0.5)] * 2])
    letters = WordVectors({"a": [1.0, 0.0], "B": [0.0, 1.0]}, split=list)
    np.testing.assert_allclose(letters.embed(["aB"]), [[math.sqrt(0.5)] * 2])


# Files


def written(path: Path, *lines: str, end: str = "\n") -> Path:
    file = path / "vectors.txt"
    file.write_text("".join(line + end for line in lines), encoding="utf-8", newline="")
    return file


@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
@pytest.mark.parametrize("header", [[], ["2 3"]], ids=["glove", "word2vec"])
def test_both_formats_are_read(tmp_path: Path, header: list[str], end: str) -> None:
    file = written(tmp_path, *header, "the 1.0 0 0.5", "food -2e-1 2 1", end=end)
    vectors = WordVectors.from_file(file).vectors
    assert list(vectors) == ["the", "food"]
    np.testing.assert_allclose(vectors["food"], [-0.2, 2, 1])


def test_words_may_hold_white_space(tmp_path: Path) -> None:
    file = written(tmp_path, "the 1 2", ". . 3 4", "a\xa0b 5 6", "\u2028 7 8")
    vectors = WordVectors.from_file(file).vectors
    assert list(vectors) == ["the", ". .", "a\xa0b", "\u2028"]
    np.testing.assert_allclose(vectors[". ."], [3, 4])


def test_of_one_word_twice_the_first_is_kept(tmp_path: Path) -> None:
    encoder = WordVectors.from_file(written(tmp_path, "food 3 4", "food 7 8"), {"food": 2.0})
    assert {word: vector.tolist() for word, vector in encoder.vectors.items()} == {"food": [3, 4]}
    assert encoder.idf == {"food": 2.0}


@given(vectors=st.dictionaries(st.text("abé.", min_size=1), st.lists(
    st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1))  # fmt: skip
def test_a_file_goes_round(
    tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, list[float]]
) -> None:
    lines = [" ".join([word, *map(repr, numbers)]) for word, numbers in vectors.items()]
    found = WordVectors.from_file(written(tmp_path_factory.getbasetemp(), *lines)).vectors
    assert {word: numbers.tolist() for word, numbers in found.items()} == vectors


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["the 1 2", "food 3"], 2),
        (["2 2", "the 1 2", ""], 3),
        (["the 1 2", "food 3 x4"], 2),
        (["2 2", "the 1 nan"], 2),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, lines: list[str], number: int) -> None:
    with pytest.raises(ValueError, match=f"vectors.txt:{number}"):
        WordVectors.from_file(written(tmp_path, *lines))


def test_weights_below_0() -> None:
    with pytest.raises(ValueError, match="idf"):
        WordVectors(VECTORS, {"the": -1.0})
