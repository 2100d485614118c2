"""CTRLEval that keeps the pattern evaluators behind its scores, so that no text is scored twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.functional.ctrleval import normalize_weights
from ctrlreward.models.tasks import TokenScores
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import CTRLEval, Evaluated

# Scores and weights of the evaluators of one text; the weights sum to 1.
Recorded: TypeAlias = tuple[Scores, Scores]


class RecordedCTRLEval(CTRLEval):
    """CTRLEval with the evaluators of all samples that it has scored.

    Args:
        *arguments: See `CTRLEval`.
        **options: See `CTRLEval`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._recorded: dict[tuple[str, ...], Recorded] = {}

    def evaluators_of(self, samples: Samples, aspect: str) -> list[Recorded]:
        """Return scores and weights of the evaluators of each sample; weights sum to 1.

        Both are empty for a sample that failed or was never scored.
        """
        keys = (_key(samples, i, aspect) for i in range(len(samples)))
        return [self._recorded.get(key, (np.zeros(0), np.zeros(0))) for key in keys]

    def evaluated(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> Iterator[Evaluated]:
        """Yield the evaluators as `CTRLEval.evaluated`, and keep them."""
        for found in super().evaluated(samples, answers, names):
            if len(found.scores):
                key = _key(samples, found.sample, found.aspect)
                self._recorded[key] = found.scores, normalize_weights(found.weights)
            yield found


def evaluator_table(texts: Sequence[Recorded], evaluators: int) -> tuple[Scores, Scores]:
    """Return scores and weights of texts that have the same evaluators, as attribute relevance.

    Args:
        texts: Scores and weights of the evaluators of each of n texts.
        evaluators: Number of evaluators.

    Returns:
        Two arrays of shape (n, evaluators); NaN in the rows of texts that failed.
    """
    scores, weights = np.full((2, len(texts), evaluators), np.nan)
    for i, text in enumerate(texts):
        if len(text[0]):
            scores[i], weights[i] = text
    return scores, weights


def _key(samples: Samples, i: int, aspect: str) -> tuple[str, ...]:
    columns = samples.columns()
    return (
        aspect,
        *(columns[n][i] if n in columns else "" for n in ("texts", "prefixes", "labels")),
    )
