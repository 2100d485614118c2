"""Explanations of Alignment scores: the alignment of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.models.aligner import TokenAlignment


@dataclass(frozen=True)
class AlignedToken:
    """A token of a text with its alignment.

    Attributes:
        start: Index of its first character in the text.
        end: Index after its last character.
        value: Alignment with the other text; higher is better.
        counted: False if the score leaves the token out, such as a stop word.
    """

    start: int
    end: int
    value: float
    counted: bool


@dataclass(frozen=True)
class AlignedText:
    """A text aligned with another one, token by token.

    Attributes:
        text: Text whose tokens are aligned.
        other: Text that they are aligned with.
        score: Mean or sum of the counted values; NaN if there is nothing to score.
        tokens: Tokens in text order; empty if either text has none.
    """

    text: str
    other: str
    score: float
    tokens: tuple[AlignedToken, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON; a NaN score becomes None."""
        record = asdict(self)
        return {**record, "score": None if np.isnan(self.score) else self.score}


# Alignment of a text's tokens, which of them count, shape (tokens,), and the score.
Aligned: TypeAlias = tuple[TokenAlignment, npt.NDArray[np.bool_], float]


def aligned_text(
    text: str, other: str, alignment: TokenAlignment, counted: npt.NDArray[np.bool_], score: float
) -> AlignedText:
    """Explain the score of a text by its tokens.

    Args:
        text: Text whose tokens are aligned.
        other: Text that they are aligned with.
        alignment: Spans and values of the tokens; none if there is nothing to score.
        counted: Whether each token counts, shape (tokens,).
        score: Score of the text.
    """
    rows = zip(alignment.spans, alignment.values.tolist(), counted.tolist(), strict=True)
    tokens = tuple(AlignedToken(*span, value, counts) for span, value, counts in rows)
    return AlignedText(text, other, score, tokens)


def to_records(explained: Sequence[Mapping[str, AlignedText]]) -> list[dict[str, Any]]:
    """Convert the result of `Alignment.explain` to one record per sample and direction.

    Args:
        explained: For each sample, its directions by name.

    Returns:
        Records for JSON with `sample` (its index), `direction` and the fields of `AlignedText`;
        the tokens are records too.
    """
    return [
        {"sample": index, "direction": name, **aligned.to_record()}
        for index, directions in enumerate(explained)
        for name, aligned in directions.items()
    ]
