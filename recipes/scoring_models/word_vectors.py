"""Word vectors with the idf, and the mean, of your corpus.

For YAML and the command line, in place of a sentence encoder; see docs/style_transfer_metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ctrlreward.engine.sharing import shared_model
from ctrlreward.functional.frequency import inverse_document_frequency
from ctrlreward.models.word_vectors import WordVectors
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines
from ctrlreward.text.words import split_words_and_marks


def sentence_vectors(
    corpus: Sequence[str],
    exclude: Sequence[str] = (),
    vectors: str = "glove-6b-50d",
    centred: bool = True,
) -> WordVectors:
    """Return word vectors weighted by the idf of a corpus, and by default centred on its mean.

    `centred=False` is the Sim of Pang & Gimpel (2019), §3.2, whose corpus has both styles.
    Equal calls share one object for as long as a scorer holds it.

    Args:
        corpus: Files of one sentence per line; see `text_files.read_lines`.
        exclude: Files of held-out sentences, such as those to be scored.
        vectors: Short name of word vectors, or a folder that `WordVectors.save` has written.
        centred: Subtract the mean of the corpus; see `WordVectors.centred`.

    Raises:
        TypeError: `corpus` or `exclude` is a single string.
        ValueError: The files contain no sentence outside `exclude`, or none with a known word; or
            `vectors` is not a set of word vectors, or is a centred one.
        OSError: A file cannot be read, or a download failed.
    """
    for name, files in (("corpus", corpus), ("exclude", exclude)):
        if isinstance(files, str):
            raise TypeError(f"{name} must be a list of files, got {files!r}, a str")
    return shared_model(_fit, tuple(corpus), tuple(exclude), vectors, centred)


def _fit(
    corpus: tuple[str, ...], exclude: tuple[str, ...], vectors: str, centred: bool
) -> WordVectors:
    held_out = read_held_out(exclude)

    def sentences() -> Iterator[str]:
        """Yield the corpus, read anew, without empty and held-out lines."""
        for line in read_lines(corpus):
            if line.strip() and matching_key(line) not in held_out:
                yield line

    if next(sentences(), None) is None:
        raise ValueError(
            f"corpus = {', '.join(corpus)} has no sentence outside `exclude`. Add files."
        )
    idf = inverse_document_frequency(map(split_words_and_marks, sentences()))
    encoder = WordVectors.load(vectors, idf)
    return encoder.centred(sentences()) if centred else encoder
