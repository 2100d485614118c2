"""What a score of CTRLEval is made of: each pattern evaluator with its score and its weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.functional.ctrleval import Weighting, normalised, weighted_mean
from ctrlreward.scorers.base import Scores


@dataclass(frozen=True)
class Pattern:
    """A pattern evaluator: text with a blank, and what is looked for in it.

    Attributes:
        left: What stands before the blank. Prompts of attribute relevance keep `<gen_result>` in
            the place of the text.
        right: What stands behind it.
        target: The filling whose likelihood counts: a sentence, the prefix, the remainder, or
            the wanted label's word.
        candidates: The fillings that the target is compared with, itself among them. More than
            one for attribute relevance only: a word of each label, in the order of the labels.
    """

    left: str
    right: str
    target: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class PatternScore(Pattern):
    """A pattern evaluator's verdict on one text.

    Attributes:
        score: Mean log-probability of the target's tokens, in (-inf, 0]; for attribute relevance
            the target's share among the candidates, in [0, 1]. Higher is better.
        weight: Its share in the score of the text, in [0, 1]; all of one text have sum 1.
    """

    score: float
    weight: float


@dataclass(frozen=True)
class Explanation:
    """One aspect of one text: its score, and the pattern evaluators that it is made of.

    Attributes:
        aspect: `"coherence"`, `"consistency"` or `"attribute_relevance"`.
        score: The weighted mean of the evaluators' scores; NaN where there is nothing to score.
        evaluators: In the order in which they were asked; none where the score is NaN.
    """

    aspect: str
    score: float
    evaluators: tuple[PatternScore, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Plain data that JSON can hold; a score of NaN is None."""
        record = asdict(self)
        return {**record, "score": None if np.isnan(self.score) else self.score}


def explanation(
    aspect: str,
    patterns: Sequence[Pattern],
    scores: Scores,
    beta: Scores,
    weighting: Weighting,
) -> Explanation:
    """Folds the scores of one text's evaluators.

    Args:
        aspect: Whose evaluators these are.
        patterns: One or more.
        scores: What each evaluator says, shape (evaluators,).
        beta: The paper's weights, not normalised, shape (evaluators,).
        weighting: One of `functional.ctrleval.WEIGHTINGS`.
    """
    weights = weighting(scores, beta)
    verdicts = zip(patterns, scores.tolist(), normalised(weights).tolist(), strict=True)
    return Explanation(
        aspect,
        weighted_mean(scores, weights),
        tuple(
            PatternScore(p.left, p.right, p.target, p.candidates, score, weight)
            for p, score, weight in verdicts
        ),
    )


def to_records(explained: Sequence[Mapping[str, Explanation]]) -> list[dict[str, Any]]:
    """What `CTRLEval.explain` gives as one record per sample and aspect, for JSON or a table.

    Args:
        explained: For each sample its explanations by aspect.

    Returns:
        Records with `sample` (its number), `aspect`, `score` (None where it is NaN) and
        `evaluators`, a list of records with the fields of `PatternScore`.
    """
    return [
        {"sample": number, **part.to_record()}
        for number, parts in enumerate(explained)
        for part in parts.values()
    ]
