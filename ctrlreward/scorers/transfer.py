"""Style transfer quality: accuracy, similarity and perplexity combined in one number."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ctrlreward.arguments import kind_of
from ctrlreward.functional.transfer import (
    GM_THRESHOLDS,
    SentenceScores,
    adjusted_gm,
    checked_thresholds,
    corpus_figures,
    gm_of,
)
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import (
    Component,
    CompositeScorer,
    Scored,
    Scorer,
    Scores,
    ScoreSpec,
    score,
)
from ctrlreward.scorers.perplexity import TOKENS, Perplexity
from ctrlreward.scorers.similarity import Similarity

# Values of each sample from which the scores of a corpus are computed.
CORPUS_PARTS = ("accuracy", "similarity", "log_likelihood", TOKENS)

# Scores of a sample whose GM is computed.
_FACTORS = ("label_probability", "similarity", "perplexity")


class TransferQuality(CompositeScorer):
    """Adjusted geometric mean of Pang & Gimpel (2019), eq. 1. Needs `labels` and `sources`.

    - `gm`: adjusted geometric mean of a sample's label probability (its accuracy is binary),
      similarity and perplexity; 0 or more, higher is better.
    - All scores of the three scorers, with the same names.

    The paper's tables report `corpus`, not the mean of `gm`.

    Args:
        accuracy: Scores the style; None takes `Accuracy()`.
        similarity: Scores the content; None takes `Similarity()`.
        perplexity: Scores the fluency; None takes `Perplexity()`.
        thresholds: t1 to t4 of eq. 1. The paper's values fit its classifier, word vectors and
            language model. With others, such as the built-in ones, take t4 ≤ 2 - t3, so that `gm`
            falls with perplexity (`adjusted_gm`).
    """

    def __init__(
        self,
        accuracy: Accuracy | None = None,
        similarity: Similarity | None = None,
        perplexity: Perplexity | None = None,
        thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
    ) -> None:
        self.accuracy = Accuracy() if accuracy is None else accuracy
        self.similarity = Similarity() if similarity is None else similarity
        self.perplexity = Perplexity() if perplexity is None else perplexity
        arguments = ("accuracy", "similarity", "perplexity")
        for argument, needed, part in zip(arguments, _FACTORS, self.parts, strict=True):
            if not isinstance(part, Scorer) or needed not in part.specs:
                raise ValueError(f"{argument} must be a scorer with {needed}, got {kind_of(part)}")
        self.thresholds = checked_thresholds(thresholds)

    @property
    def parts(self) -> tuple[Scorer, ...]:
        return self.accuracy, self.similarity, self.perplexity

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        _, _, t3, t4 = self.thresholds
        best = float(adjusted_gm(1.0, 1.0, max(1.0, (t3 + t4) / 2), self.thresholds))
        of_parts = {name: spec for part in self.parts for name, spec in part.specs.items()}
        return {"gm": ScoreSpec(higher_is_better=True, range=(0.0, best)), **of_parts}

    corpus_columns = CORPUS_PARTS

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        """Return the figures of the paper's tables: accuracy, similarity, perplexity and GM."""
        parts = SentenceScores(*(columns[name] for name in CORPUS_PARTS))
        return corpus_figures(parts, self.thresholds)

    def score_samples(self, samples: Samples, names: Collection[str] | None = None) -> Scored:
        parts = {name: Component(part, name) for part in self.parts for name in part.specs}
        if TOKENS in (names or ()):
            parts[TOKENS] = Component(self.perplexity, TOKENS)
        found = score(parts, samples)
        gm = gm_of(_FACTORS, self.thresholds, found.scores)
        return Scored({"gm": gm, **found.scores}, found.failures)
