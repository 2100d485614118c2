"""Explanations of Alignment scores: the alignment of each token."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.functional.alignment import AGGREGATES, content_tokens
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


def aligned_text(
    text: str,
    other: str,
    alignment: TokenAlignment,
    stop_words: Collection[str],
    aggregate: str,
) -> AlignedText:
    """Aggregate the alignments of one text's tokens.

    Args:
        text: Text whose tokens are aligned.
        other: Text that they are aligned with.
        alignment: Spans and values of the tokens, from an aligner.
        stop_words: Tokens that the score leaves out, in lower case.
        aggregate: One of `functional.alignment.AGGREGATES`.
    """
    spans, values = alignment
    if not spans or np.isnan(values).any():
        return AlignedText(text, other, np.nan)
    counted = content_tokens(text, spans, stop_words)
    tokens = tuple(
        AlignedToken(start, end, value, counts)
        for (start, end), value, counts in zip(
            spans, values.tolist(), counted.tolist(), strict=True
        )
    )
    return AlignedText(text, other, AGGREGATES[aggregate](values[counted]), tokens)


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
