"""What a score of `Alignment` is made of: each token with its alignment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.functional.alignment import AGGREGATES, content_tokens
from ctrlreward.models.aligner import TokenAlignment


@dataclass(frozen=True)
class AlignedToken:
    """A token of a text.

    Attributes:
        start: Its first character in the text.
        end: The character after its last.
        value: How well it is aligned with the other text; higher is better.
        counted: Whether the score counts it; stop words may be left out.
    """

    start: int
    end: int
    value: float
    counted: bool


@dataclass(frozen=True)
class AlignedText:
    """A text aligned with another, token by token.

    Attributes:
        text: Whose tokens these are.
        other: What they are aligned with.
        score: Mean or sum of the counted values; NaN where there is nothing to score.
        tokens: In the order of the text; none where one of the two has none.
    """

    text: str
    other: str
    score: float
    tokens: tuple[AlignedToken, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Plain data that JSON can hold; a score of NaN is None."""
        record = asdict(self)
        return {**record, "score": None if np.isnan(self.score) else self.score}


def aligned_text(
    text: str,
    other: str,
    alignment: TokenAlignment,
    stop_words: Collection[str],
    aggregate: str,
) -> AlignedText:
    """Folds the alignments of one text's tokens.

    Args:
        text: Whose tokens these are.
        other: What they are aligned with.
        alignment: What an aligner says of the two.
        stop_words: Tokens that don't count, in lower case.
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
    """What `Alignment.explain` gives as one record per sample and direction, for JSON.

    Args:
        explained: For each sample its directions by name.

    Returns:
        Records with `sample` (its number), `direction` and the fields of `AlignedText`, the
        tokens as records too.
    """
    return [
        {"sample": number, "direction": name, **aligned.to_record()}
        for number, directions in enumerate(explained)
        for name, aligned in directions.items()
    ]
