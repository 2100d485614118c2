"""Word vectors with the idf, and the mean, of your corpus, in place of a sentence encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import log

import numpy as np

from ctrlreward.models.encoder import SentenceEncoder
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.word_vectors import Vectors, WordVectors
from ctrlreward.models.words import split_words_and_marks
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines

_ROUNDING = 1e-9  # length of a centred unit vector due to rounding only


def inverse_document_frequency(documents: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return idf(w) = log(N / df(w)) of each word that occurs in N documents, lists of words.

    Natural logarithm, without smoothing: 0 for a word in every document, to log(N). The word weight
    of Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, whose documents are the sentences of
    both styles.
    """
    counts: Counter[str] = Counter()
    total = 0
    for words in documents:
        total += 1
        counts.update(set(words))
    return {word: log(total / count) for word, count in counts.items()}


class CentredVectors:
    """Sentence encoder relative to the mean of a corpus; not part of the paper.

    An embedding is the unit vector along u(text) - mean of u over the corpus, where u is the unit
    vector of a text by `words`. Sentences of the corpus without a known word are left out.
    """

    def __init__(self, words: WordVectors, corpus: Iterable[str]) -> None:
        self.words = words
        total, count = np.zeros(words.width), 0
        for sentence in corpus:
            if length := np.linalg.norm(vector := words.sum(sentence)):
                total, count = total + vector / length, count + 1
        if not count:
            raise ValueError("corpus must have a word with a vector and a weight")
        self.centre = total / count

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors, float64 of shape (texts, width); NaN for the centre itself."""
        shifted = self.words.embed(texts) - self.centre
        lengths = np.linalg.norm(shifted, axis=1, keepdims=True)
        return shifted / np.where(lengths > _ROUNDING, lengths, np.nan)


def sentence_vectors(
    corpus: Sequence[str],
    exclude: Sequence[str] = (),
    vectors: str = "glove-6b-50d",
    centred: bool = True,
) -> SentenceEncoder:
    """Return word vectors weighted by the idf of a corpus, and by default centred on its mean.

    `centred=False` is the Sim of Pang & Gimpel (2019), §3.2, whose corpus has both styles.
    Equal calls share one object for as long as a scorer holds it.

    Args:
        corpus: Files of one sentence per line; see `text_files.read_lines`.
        exclude: Files of held-out sentences, such as those to be scored.
        vectors: Short name of word vectors, or a folder that `WordVectors.save` has written.
        centred: Subtract the mean of the corpus; see `CentredVectors`.
    """
    return shared_model(_fit, tuple(corpus), tuple(exclude), vectors, centred)


def _fit(
    corpus: tuple[str, ...], exclude: tuple[str, ...], vectors: str, centred: bool
) -> SentenceEncoder:
    held_out = read_held_out(exclude)

    def sentences() -> Iterator[str]:
        for line in read_lines(corpus):
            if line.strip() and matching_key(line) not in held_out:
                yield line

    idf = inverse_document_frequency(map(split_words_and_marks, sentences()))
    if not idf:
        raise ValueError(f"corpus must have a sentence outside `exclude`, got {', '.join(corpus)}")
    encoder = WordVectors.load(vectors, idf)
    return CentredVectors(encoder, sentences()) if centred else encoder
