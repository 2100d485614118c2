"""Inverse word frequencies of a vocabulary, from a file or `wordfreq`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from ctrlreward.functional.frequency import log_inverse_frequency

# |C| in `from_wordfreq`, about the size of the published table's corpus.
_SENTENCES = 10**8


@dataclass(frozen=True, eq=False)
class InverseFrequency:
    """Inverse word frequency of each token of a vocabulary (see `functional.frequency`).

    Args:
        weights: Shape (vocabulary,), finite and ≥ 0; 0 for tokens that carry no information.
    """

    weights: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float64)
        if weights.ndim != 1:
            raise ValueError(f"weights must be one weight per token, got shape {weights.shape}")
        wrong = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
        if wrong.size:
            raise ValueError(
                f"weights[{wrong[0]}] must be finite and 0 or more, got {weights[wrong[0]]}"
            )
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> InverseFrequency:
        """Read a file of one weight a line, such as the published table."""
        try:
            return cls(np.loadtxt(path, comments=None, ndmin=1))
        except ValueError as error:
            raise ValueError(f"iwf must have one number per line, got {path}: {error}") from error

    @classmethod
    def from_wordfreq(
        cls, tokenizer: PreTrainedTokenizerBase, language: str = "en"
    ) -> InverseFrequency:
        """Estimate weights for any tokenizer: each token has the frequency of the word it spells.

        Not the paper's IWF, which single rough estimates would dominate, but
        `log_inverse_frequency`. Punctuation, fragments that are unknown to wordfreq and special
        tokens have weight 0.
        """
        import wordfreq  # a seventh of a second

        pieces = tokenizer.batch_decode(
            [[token] for token in range(len(tokenizer))], clean_up_tokenization_spaces=False
        )
        # Decoding removes the marker of word starts, but not WordPiece's of continuations.
        words = [piece.strip().removeprefix("##") for piece in pieces]
        share = np.array([wordfreq.word_frequency(w, language) if w else 0.0 for w in words])
        added = tokenizer.added_tokens_decoder
        special = {*tokenizer.all_special_ids, *(i for i in added if added[i].special)}
        share[sorted(special)] = 0.0
        return cls(log_inverse_frequency(share * _SENTENCES, _SENTENCES))

    def require(self, vocabulary: int) -> InverseFrequency:
        """Return these weights if they fit a vocabulary, `len(tokenizer)` of the scoring model."""
        if len(self.weights) != vocabulary:
            raise ValueError(
                f"iwf must have a weight for each of the {vocabulary} tokens of the model, got "
                f"{len(self.weights)}"
            )
        return self

    def sentence_weight(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> float:
        """Return the largest weight among the tokens, or 0: NISF before normalisation (§3.2)."""
        return float(self.weights[np.asarray(ids, dtype=np.int64)].max(initial=0.0))
