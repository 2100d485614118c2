"""Style transfer quality: accuracy, similarity and perplexity in one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity


@dataclass(frozen=True)
class CorpusTransfer:
    """A system's row in the paper's tables.

    Attributes:
        accuracy: Share of texts that the classifier assigns to the wanted label, 0 to 1.
        similarity: Mean cosine with the sources, -1 to 1.
        perplexity: Perplexity of all texts as one corpus, 1 or more; lower is better.
        gm: Adjusted geometric mean of these three; higher is better.
        failed: Samples without accuracy or similarity, left out of the means.
    """

    accuracy: float
    similarity: float
    perplexity: float
    gm: float
    failed: int


class TransferQuality(Scorer):
    """Adjusted geometric mean of Pang & Gimpel (2019), eq. 1. Needs `labels` and `sources`.

    - `gm`: each sample's own, of its label probability (a single decision is all or nothing),
      similarity and perplexity; 0 or more, higher is better.
    - The scores that it is made of, under the names they have in the three scorers.

    The paper's tables are not the mean of `gm` but `corpus`.

    Args:
        accuracy: Judges the style.
        similarity: Judges the content.
        perplexity: Judges the fluency.
        thresholds: t1 to t4 of eq. 1. The paper's suit its own classifier, word vectors and
            language model.
    """

    def __init__(
        self,
        accuracy: Accuracy,
        similarity: Similarity,
        perplexity: Perplexity,
        thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
    ) -> None:
        self.accuracy = accuracy
        self.similarity = similarity
        self.perplexity = perplexity
        self.thresholds = thresholds

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """`gm` and its parts."""
        _, _, t3, t4 = self.thresholds
        best = float(adjusted_gm(1.0, 1.0, max(1.0, (t3 + t4) / 2), self.thresholds))
        specs = {"gm": ScoreSpec(higher_is_better=True, range=(0.0, best))}
        for part in self._parts:
            specs.update(part.specs)
        return specs

    def score(self, samples: Samples) -> dict[str, Scores]:
        """All scores, float64 of shape (n,); `gm` is NaN where a part is.

        Raises:
            ValueError: The column `labels` or `sources` is absent, or a label is unknown.
        """
        parts = {name: v for part in self._parts for name, v in part.score(samples).items()}
        sides = (parts["label_probability"], parts["similarity"], parts["perplexity"])
        return {"gm": adjusted_gm(*sides, thresholds=self.thresholds), **parts}

    def corpus(self, samples: Samples) -> CorpusTransfer:
        """The paper's figures for all samples together, as the output of one system.

        Raises:
            ValueError: The column `labels` or `sources` is absent, or a label is unknown.
        """
        decisions = self.accuracy.score(samples)["accuracy"]
        cosines = self.similarity.score(samples)["similarity"]
        valid = ~np.isnan(decisions) & ~np.isnan(cosines)
        accuracy = float(decisions[valid].mean()) if valid.any() else float("nan")
        similarity = float(cosines[valid].mean()) if valid.any() else float("nan")
        perplexity = self.perplexity.corpus_perplexity(samples[np.flatnonzero(valid).tolist()])
        return CorpusTransfer(
            accuracy,
            similarity,
            perplexity,
            gm=float(adjusted_gm(accuracy, similarity, perplexity, self.thresholds)),
            failed=int((~valid).sum()),
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of all three."""
        return tuple(dict.fromkeys(device for part in self._parts for device in part.devices))

    def load(self) -> None:
        """Loads the models of all three now."""
        for part in self._parts:
            part.load()

    def to(self, device: str) -> None:
        """Moves all three."""
        for part in self._parts:
            part.to(device)

    def release(self) -> None:
        """Frees the models of all three."""
        for part in self._parts:
            part.release()

    @property
    def _parts(self) -> tuple[Scorer, ...]:
        return self.accuracy, self.similarity, self.perplexity
