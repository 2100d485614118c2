"""Figures of a style transfer system as one corpus, with intervals over its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ctrlreward.files import finite_or_none
from ctrlreward.functional.bootstrap import Estimate, bootstrap
from ctrlreward.functional.diversity import distinct_n
from ctrlreward.functional.transfer import SentenceScores, weighted_transfer
from ctrlreward.recipes.papers.li2018.system_outputs import REFERENCES, SystemOutputs, tokenized
from ctrlreward.recipes.papers.textual_transfer.transfer_baselines import sentence_scores
from ctrlreward.recipes.papers.textual_transfer.transfer_bleu import (
    reference_bleu,
    reference_meteor,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_comparisons import plain_estimate
from ctrlreward.scorers import Accuracy, Similarity, TransferQuality

Floats = npt.NDArray[np.float64]

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class SystemFigures:
    """Figures of one system.

    Attributes:
        name: Name of the system.
        rows: Index of the test sentence of each output, shape (n,).
        scores: Scores of each output by the reward's judges.
        estimates: `accuracy`, `similarity`, `perplexity` and `gm` of the corpus by the reward's
            judges, `independent`, the accuracy by another classifier, and `uncentred`, the
            similarity by other vectors, each with its 95 % interval. An output that a judge can't
            score, such as an empty one, is left out.
        distinct_2: Distinct pairs of words over words, 0 to 1; falls with the number of sentences.
        bleu: BLEU against the references, 0 to 100; None for the references.
        bleu_signature: Settings of sacrebleu.
        meteor: METEOR against the references, 0 to 100; None for the references.
    """

    name: str
    rows: tuple[int, ...]
    scores: SentenceScores
    estimates: dict[str, Estimate]
    distinct_2: float
    bleu: float | None
    bleu_signature: str | None
    meteor: float | None

    @property
    def failed(self) -> int:
        """Number of outputs that the reward's judges could not score."""
        return int(self.scores.failed.sum())

    def plain(self) -> dict[str, Any]:
        """Return the figures as JSON values, null if undefined."""
        return {
            "n": len(self.rows),
            "failed": self.failed,
            **{name: plain_estimate(each) for name, each in self.estimates.items()},
            "bleu": self.bleu,
            "meteor": self.meteor,
            "distinct_2": finite_or_none(self.distinct_2),
        }


@dataclass(frozen=True)
class SystemJudges:
    """Judges of systems.

    Attributes:
        quality: The judges of the reward.
        independent: A classifier that the reward does not use.
        uncentred: Similarity by other vectors than the reward's; None for none.
        resamples: Number of draws of the bootstrap, 1 or more.
        seed: Seed of the draws; equal draws of sentences for systems of equal size.
    """

    quality: TransferQuality
    independent: Accuracy
    uncentred: Similarity | None = None
    resamples: int = 2000
    seed: int = 0

    def figures(self, system: SystemOutputs) -> SystemFigures:
        """Score the outputs of a system, all as tokenized corpora are written."""
        samples = tokenized(system.samples)
        scores = sentence_scores(self.quality, samples)
        others = {"independent": self.independent.score(samples)["accuracy"]}
        if self.uncentred is not None:
            others["uncentred"] = self.uncentred.score(samples)["similarity"]
        human = system.name == REFERENCES
        bleu = None if human else reference_bleu(system.samples)
        return SystemFigures(
            system.name,
            system.rows,
            scores,
            self._estimates(scores, others),
            distinct_words(samples.texts),
            bleu and bleu.score,
            bleu and bleu.signature,
            None if human else reference_meteor(system.samples),
        )

    def _estimates(self, scores: SentenceScores, others: dict[str, Floats]) -> dict[str, Estimate]:
        def figures(weights: Floats) -> dict[str, Floats]:
            means = {name: _weighted_mean(values, weights) for name, values in others.items()}
            return weighted_transfer(scores, weights, self.quality.thresholds) | means

        rows = np.arange(len(scores.accuracy))
        return bootstrap(figures, rows, _CONFIDENCE, self.resamples, self.seed)


def distinct_words(texts: Sequence[str]) -> float:
    """Return Distinct-2 of a corpus, of words between spaces; see `distinct_n`.

    Args:
        texts: Texts as tokenized corpora are written.

    Examples:
        >>> distinct_words(("good soup .", "good soup ."))  # 2 pairs, 6 words
        0.3333333333333333
    """
    numbers: dict[str, int] = {}
    ids = [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts]
    return distinct_n(ids, 2)


def _weighted_mean(values: Floats, weights: Floats) -> Floats:
    valid = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: Floats = weights @ np.where(valid, values, 0.0) / (weights @ valid)
    return mean
