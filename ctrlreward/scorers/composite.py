"""Base class of scorers that combine the scores of others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence

from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scorer


def check_part(argument: str, part: object, scores: Collection[str], example: str) -> None:
    """Raise unless a part of a composite scorer has the scores that the composite needs.

    Args:
        argument: Name of the part, for the error.
        part: What was given.
        scores: Names of the scores that it must have.
        example: What to give, as the user would type it.

    Raises:
        TypeError: It is not a scorer.
        ValueError: It lacks a score.

    Examples:
        >>> from ctrlreward import LexiconSentiment
        >>> check_part("accuracy", LexiconSentiment(), ["label_probability"], "Accuracy(...)")
        Traceback (most recent call last):
        ValueError: accuracy is a LexiconSentiment, which has no label_probability, only polarity,
        accuracy: give Accuracy(...)
    """
    kind = type(part).__name__
    if not isinstance(part, Scorer):
        raise TypeError(f"{argument} = {shortened(part)} is a {kind}, not a scorer: give {example}")
    lacking = [name for name in scores if name not in part.specs]
    if lacking:
        raise ValueError(
            f"{argument} is a {kind}, which has no {', '.join(lacking)}, only "
            f"{', '.join(part.specs)}: give {example}"
        )


class CompositeScorer(Scorer):
    """A scorer that combines the scores of other scorers.

    Examples:
        >>> from ctrlreward import ScoreSpec, Similarity, WordVectors
        >>> class Strictest(CompositeScorer):
        ...     specs = {"strictest": ScoreSpec(higher_is_better=True, range=(-1.0, 1.0))}
        ...
        ...     def __init__(self, *scorers):
        ...         self.scorers = scorers
        ...
        ...     @property
        ...     def parts(self):
        ...         return self.scorers
        ...
        ...     def score_samples(self, samples):
        ...         scores = [part.score(samples)["similarity"] for part in self.parts]
        ...         return {"strictest": np.min(scores, axis=0)}
        >>> one = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> other = Similarity(WordVectors({"soup": [1, 0], "broth": [4, 3]}))
        >>> Strictest(one, other).score(["broth"], sources=["soup"])
        {'strictest': array([0.6])}
    """

    @property
    @abstractmethod
    def parts(self) -> Sequence[Scorer]:
        """The scorers that are combined."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of all parts, each once."""
        return tuple(dict.fromkeys(device for part in self.parts for device in part.devices))

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that any part needs."""
        return {c: reader for part in self.parts for c, reader in part.required_columns().items()}

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise what a part would raise about samples."""
        for part in self.parts:
            part.check_samples(samples)

    def load(self) -> None:
        """Load the models of all parts now."""
        for part in self.parts:
            part.load()

    def to(self, device: str) -> None:
        """Move the models of all parts."""
        for part in self.parts:
            part.to(device)

    def release(self) -> None:
        """Free the models of all parts."""
        for part in self.parts:
            part.release()
