"""Idf and centre of a corpus."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.word_vectors import WordVectors
from ctrlreward.recipes.scoring_models.word_vectors import CentredVectors, sentence_vectors

VECTORS = {"the": [1.0, 0.0], "soup": [0.0, 2.0], "good": [-1.0, 1.0]}
CORPUS = ["the soup", "The  good", "", "the lake", "good good"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with vectors, a corpus and held-out sentences."""
    monkeypatch.chdir(tmp_path)
    WordVectors(VECTORS).save("vectors")
    Path("corpus").write_text("\n".join([*CORPUS, "held  OUT soup"]))
    Path("held_out").write_text("x\theld out soup\n")


def test_idf_and_centre_are_those_of_the_corpus(files: None) -> None:
    sentences = [sentence.lower().split() for sentence in CORPUS if sentence]
    counts = Counter(word for sentence in sentences for word in set(sentence))
    raw = sentence_vectors(["corpus"], ["held_out"], "vectors", centred=False)
    assert raw.idf == pytest.approx({word: math.log(4 / n) for word, n in counts.items()})
    units = [unit for unit in raw.embed([c for c in CORPUS if c]) if not np.isnan(unit[0])]
    centred = sentence_vectors(["corpus"], ["held_out"], "vectors")
    assert centred.words.idf == raw.idf
    np.testing.assert_allclose(centred.centre, np.mean(units, axis=0))


TEXTS = st.lists(st.sampled_from(["the", "Soup", "GOOD", "lake"]), max_size=6).map(" ".join)


def centred_by_hand(words: WordVectors, text: str, corpus: list[str]) -> list[float]:
    """The unit vector along the difference from the corpus's mean, in plain Python."""
    units = [words.embed([sentence])[0].tolist() for sentence in corpus]
    known = [unit for unit in units if not math.isnan(unit[0])]
    means = [sum(column) / len(known) for column in zip(*known, strict=True)]
    shifted = [v - m for v, m in zip(words.embed([text])[0], means, strict=True)]
    length = math.sqrt(sum(v * v for v in shifted))
    return [v / length if length > 1e-9 else math.nan for v in shifted]


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_centring_equals_plain_loops(texts: list[str], corpus: list[str]) -> None:
    words, corpus = WordVectors(VECTORS, {"the": 0.0, "soup": 1.5}), [*corpus, "the soup", "lake"]
    embeddings = CentredVectors(words, iter(corpus)).embed([*texts, "soup"])
    expected = [centred_by_hand(words, text, corpus) for text in (*texts, "soup")]
    np.testing.assert_allclose(embeddings, expected, atol=1e-9)


def test_a_corpus_without_a_known_word_is_refused() -> None:
    with pytest.raises(ValueError, match="corpus"):
        CentredVectors(WordVectors(VECTORS), ["lake"])
