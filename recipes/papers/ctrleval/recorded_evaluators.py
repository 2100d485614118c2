"""CTRLEval that keeps the pattern evaluators behind its scores, so that no text is scored twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlreward.engine.requests import Requests
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import AspectName, CTRLEval
from ctrlreward.scorers.ctrleval_explanation import Explanation


class RecordedCTRLEval(CTRLEval):
    """CTRLEval with the explanations of all samples that it has scored.

    Args:
        *arguments: See `CTRLEval`.
        **options: See `CTRLEval`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._explained: dict[tuple[str, ...], Explanation] = {}

    def explanations(self, samples: Samples, aspect: str) -> list[Explanation]:
        """Return the explanation of one aspect of each sample.

        One with a NaN score stands for a sample that failed or was never scored.
        """
        keys = (_key(samples, i, aspect) for i in range(len(samples)))
        return [self._explained.get(key, Explanation(aspect, np.nan)) for key in keys]

    def _explain_each(
        self,
        samples: Samples,
        aspects: Sequence[AspectName],
        keep: Callable[[int, Explanation], None],
    ) -> Requests[None]:
        def record(i: int, explanation: Explanation) -> None:
            self._explained[_key(samples, i, explanation.aspect)] = explanation
            keep(i, explanation)

        yield from super()._explain_each(samples, aspects, record)


def evaluator_scores(explanation: Explanation) -> tuple[Scores, Scores]:
    """Return the scores and weights of the evaluators of one text, shape (evaluators,) each."""
    rows = explanation.evaluators
    return np.array([e.score for e in rows]), np.array([e.weight for e in rows])


def evaluator_table(explanations: Sequence[Explanation], evaluators: int) -> tuple[Scores, Scores]:
    """Return scores and weights of texts that have the same evaluators, as attribute relevance.

    Args:
        explanations: One of each of n texts.
        evaluators: Number of evaluators.

    Returns:
        Two arrays of shape (n, evaluators); NaN in the rows of texts that failed.
    """
    scores, weights = np.full((2, len(explanations), evaluators), np.nan)
    for i, explanation in enumerate(explanations):
        if explanation.evaluators:
            scores[i], weights[i] = evaluator_scores(explanation)
    return scores, weights


def _key(samples: Samples, i: int, aspect: str) -> tuple[str, ...]:
    columns = (samples.texts, samples.prefixes, samples.labels)
    return (aspect, *(column[i] if column else "" for column in columns))
