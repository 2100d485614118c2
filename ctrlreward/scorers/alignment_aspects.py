"""Aspects of CTC: the texts that are aligned, and the aggregation of their tokens to a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ctrlreward.functional.alignment import preservation, relevance
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

# Between knowledge and history, as in the training of the published dialog aligners.
_SEPARATOR = "\n\n\n"


class Direction(NamedTuple):
    """A column whose tokens are aligned, and the columns they are aligned with.

    Attributes:
        text: Column of `Samples` whose tokens are aligned.
        others: Columns that they are aligned with; several are joined by three line breaks.
    """

    text: str
    others: tuple[str, ...]

    def columns(self, samples: Samples, scorer: str) -> dict[str, list[str]]:
        """Return both sides by name, with surrounding white space stripped.

        Raises:
            ValueError: A column is absent.
        """
        joined = zip(*(samples.require(name, scorer) for name in self.others), strict=True)
        return {
            self.text: [text.strip() for text in samples.require(self.text, scorer)],
            " + ".join(self.others): [
                _SEPARATOR.join(part.strip() for part in parts).strip() for parts in joined
            ],
        }


class Aspect(NamedTuple):
    """Definition of an aspect.

    Attributes:
        directions: One or two directions, by the name of the score that each yields.
        aggregate: Aggregation of the tokens of a direction: a key of `AGGREGATES`.
        content_only: True if stop words are left out.
        fold: Function that combines the scores of two directions, in their order.
    """

    directions: Mapping[str, Direction]
    aggregate: str = "mean"
    content_only: bool = False
    fold: Callable[[Scores, Scores], Scores] | None = None


_OUTPUT = Direction("texts", ("sources",))

ASPECTS: Mapping[str, Aspect] = {
    "consistency": Aspect({"consistency": _OUTPUT}),
    "relevance": Aspect(
        {
            "relevance_reference": Direction("references", ("texts",)),
            "relevance_output": _OUTPUT,
        },
        fold=relevance,
    ),
    "preservation": Aspect(
        {
            "preservation_output": _OUTPUT,
            "preservation_source": Direction("sources", ("texts",)),
        },
        fold=preservation,
    ),
    "engagingness": Aspect(
        {"engagingness": Direction("texts", ("contexts", "histories"))}, "sum", content_only=True
    ),
    "groundedness": Aspect(
        {"groundedness": Direction("texts", ("contexts",))}, "sum", content_only=True
    ),
}
