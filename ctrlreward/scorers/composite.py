"""Base class of scorers that combine the scores of others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence

from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer


class CompositeScorer(Scorer):
    """A scorer that combines the scores of other scorers.

    Examples:
        >>> from ctrlreward import ScoreSpec, Similarity, WordVectors
        >>> class Strictest(CompositeScorer):
        ...     specs = {"strictest": ScoreSpec(higher_is_better=True, range=(-1.0, 1.0))}
        ...     parts = [
        ...         Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]})),
        ...         Similarity(WordVectors({"soup": [1, 0], "broth": [4, 3]})),
        ...     ]
        ...
        ...     def score_samples(self, samples):
        ...         scores = [part.score(samples)["similarity"] for part in self.parts]
        ...         return {"strictest": np.min(scores, axis=0)}
        >>> Strictest().score(["broth"], sources=["soup"])
        {'strictest': array([0.6])}
    """

    @property
    @abstractmethod
    def parts(self) -> Sequence[Scorer]:
        """The scorers that are combined."""

    @property
    def _inner(self) -> Sequence[Scorer]:
        return self.parts

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that any part needs."""
        return {c: reader for part in self.parts for c, reader in part.required_columns().items()}

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise the errors that a part would raise."""
        for part in self.parts:
            part.check_samples(samples)
