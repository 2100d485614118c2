"""Inverse word frequencies of a tokenizer's vocabulary: from a file, a corpus or `wordfreq`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import wordfreq
from transformers import PreTrainedTokenizerBase

from ctrlreward.files import write_whole
from ctrlreward.functional.frequency import inverse_frequency, log_inverse_frequency

# Tokenised at a time: enough to keep a fast tokenizer busy, little enough for any memory.
_CHUNK = 10_000

# What `from_wordfreq` takes for |C|, about the size of the published table's corpus.
_SENTENCES = 10**8


@dataclass(frozen=True, eq=False)
class InverseFrequency:
    """The weight of every token of a vocabulary (see `functional.frequency`).

    Args:
        weights: Shape (vocabulary,), finite and ≥ 0; 0 for tokens that say nothing.

    Raises:
        ValueError: The weights are not such an array.
    """

    weights: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float64)
        if weights.ndim != 1:
            raise ValueError(f"weights has the shape {weights.shape}: give one weight per token")
        wrong = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
        if wrong.size:
            raise ValueError(
                f"weights[{wrong[0]}] = {weights[wrong[0]]}: give finite weights of 0 or more"
            )
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> InverseFrequency:
        """Reads the published format: one weight a line, the line's number being the token's id.

        Raises:
            ValueError: A line holds no number that can be a weight.
        """
        weights = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                weights.append(float(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number} = {line[:40]!r} is not one weight") from error
        return cls(np.array(weights))

    @classmethod
    def from_corpus(
        cls, sentences: Iterable[str], tokenizer: PreTrainedTokenizerBase
    ) -> InverseFrequency:
        """Counts in how many of the sentences each token occurs.

        Args:
            sentences: Read once, a chunk at a time, so that a corpus may be larger than memory.
            tokenizer: The scoring model's.

        Raises:
            TypeError: `sentences` is one string.
            ValueError: There is no sentence.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences is a str: give an iterable of sentences")
        counts = np.zeros(len(tokenizer), dtype=np.int64)
        total = 0
        for chunk in _chunks(sentences):
            ids = tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
            for row in ids:
                counts[np.unique(np.asarray(row, dtype=np.int64))] += 1
            total += len(chunk)
        if total == 0:
            raise ValueError("the corpus has no sentences: give at least one")
        return cls(inverse_frequency(counts, total))

    @classmethod
    def from_wordfreq(
        cls, tokenizer: PreTrainedTokenizerBase, language: str = "en"
    ) -> InverseFrequency:
        """The default for any tokenizer: each piece has the frequency of the word it spells.

        A piece that starts a word (`▁house`) mostly is that word. One that goes on (`ing`) is
        taken for the word of the same letters, which is rarer than the piece, and a capitalised
        one for the word in lower case; so a single frequency is rough, and the weight is its
        logarithm (`log_inverse_frequency`) rather than the paper's IWF, in which the roughest
        estimate of a text would decide. The order of sentences, by the largest weight of their
        tokens, is the same for both, and that of the published PEGASUS table is kept much better
        than by single weights. Pieces that wordfreq doesn't know (punctuation, fragments) and
        special tokens have weight 0.

        The size of the corpus behind wordfreq is not known in sentences: 10^8 stands for it, the
        size of the published table's.

        Args:
            tokenizer: The scoring model's.
            language: As wordfreq names it.

        Raises:
            LookupError: wordfreq has no list of that language, nor of a near one.
        """
        pieces = tokenizer.batch_decode(
            [[token] for token in range(len(tokenizer))], clean_up_tokenization_spaces=False
        )
        # Decoding drops the mark of a word's start but not WordPiece's of a continuation.
        words = [piece.strip().removeprefix("##") for piece in pieces]
        share = np.array([wordfreq.word_frequency(w, language) if w else 0.0 for w in words])
        share[_special(tokenizer)] = 0.0
        return cls(log_inverse_frequency(share * _SENTENCES, _SENTENCES))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the published format, as `from_file` reads it."""
        write_whole(Path(path), "".join(f"{w:.17g}\n" for w in self.weights))

    def require(self, vocabulary: int) -> InverseFrequency:
        """These weights, or an error that says that they belong to another vocabulary.

        Args:
            vocabulary: How many tokens the scoring model's tokenizer has, `len(tokenizer)`.

        Raises:
            ValueError: There is not one weight per token.
        """
        if len(self.weights) != vocabulary:
            raise ValueError(
                f"iwf has {len(self.weights)} weights and the model's tokenizer {vocabulary} "
                "tokens: give the table of this tokenizer, InverseFrequency.from_corpus(sentences, "
                "tokenizer), or iwf=None for the default"
            )
        return self

    def sentence_weight(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> float:
        """NISF before it is normalised: the largest weight among the tokens (§3.2).

        Args:
            ids: The sentence's tokens; none give 0.0.
        """
        return float(self.weights[np.asarray(ids, dtype=np.int64)].max(initial=0.0))


def _chunks(sentences: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(sentences)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _special(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    added = tokenizer.added_tokens_decoder
    return sorted({*tokenizer.all_special_ids, *(i for i in added if added[i].special)})
