"""The aspects of CTC: whose tokens are aligned with what, and how one number comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ctrlreward.functional.alignment import preservation, relevance
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

# Between knowledge and history: what the published aligners for dialog were trained with.
_SEPARATOR = "\n\n\n"


class Direction(NamedTuple):
    """Whose tokens are aligned, and with what: columns of `Samples`.

    Attributes:
        text: Whose tokens.
        others: With what; more than one are joined, three line ends between them.
    """

    text: str
    others: tuple[str, ...]

    def columns(self, samples: Samples, scorer: str) -> dict[str, list[str]]:
        """Both sides by name, stripped of white space around them.

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
    """What an aspect is made of.

    Attributes:
        directions: One or two, by the name of the score that each gives.
        aggregate: How the tokens of a direction become one number: a key of `AGGREGATES`.
        content_only: Whether stop words are left out.
        fold: Makes one score of two directions, in their order.
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
