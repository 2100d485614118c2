"""Explanations of CTRLEval scores: each pattern evaluator with its score and weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.functional.ctrleval import (
    Weighting,
    normalize_weights,
    relevance_evaluators,
    weighted_mean,
)
from ctrlreward.models.tasks import Blank, TokenScores
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.task import WORD_SLOT, Evaluator


@dataclass(frozen=True)
class Pattern:
    """A pattern evaluator: a text with a blank, and the target that fills it.

    Attributes:
        left: Text before the blank. Prompts of attribute relevance keep `<gen_result>` in place
            of the scored text.
        right: Text after the blank.
        target: Filling whose likelihood counts: a sentence, the prefix, the remainder, or the
            word of the target label.
        candidates: Fillings that the target is compared with, including itself. Only attribute
            relevance has more than one: a word of each label, in the order of the labels.
    """

    left: str
    right: str
    target: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class PatternScore(Pattern):
    """A pattern evaluator with its score and weight for one text.

    Attributes:
        score: Mean log-probability of the target's tokens, in (-inf, 0]; for attribute relevance
            the share of the target among the candidates, in [0, 1]. Higher is better.
        weight: Share in the score of the text, in [0, 1]; the weights of one text sum to 1.
    """

    score: float
    weight: float


@dataclass(frozen=True)
class Explanation:
    """One aspect of one text: its score and the pattern evaluators behind it.

    Attributes:
        aspect: `"coherence"`, `"consistency"` or `"attribute_relevance"`.
        score: Weighted mean of the evaluators' scores; NaN if there is nothing to score.
        evaluators: Pattern evaluators in the order in which they ran; empty if the score is NaN.
    """

    aspect: str
    score: float
    evaluators: tuple[PatternScore, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON; a NaN score becomes None."""
        record = asdict(self)
        return {**record, "score": None if np.isnan(self.score) else self.score}


def explain_likelihood(
    aspect: str,
    blanks: Sequence[Blank],
    targets: Sequence[TokenScores],
    beta: Scores,
    weighting: Weighting,
) -> Explanation:
    """Aggregate the patterns of coherence or consistency of one text.

    Args:
        aspect: `"coherence"` or `"consistency"`.
        blanks: Patterns, one or more, with one target each.
        targets: Token scores of the targets.
        beta: Unnormalised weights of the paper, shape (evaluators,).
        weighting: One of `functional.ctrleval.WEIGHTINGS`.
    """
    patterns = [Pattern(b.left, b.right, b.targets[0], b.targets) for b in blanks]
    scores = np.array([target.log_probs.mean() for target in targets])
    return explain(aspect, patterns, scores, beta, weighting)


def explain_relevance(
    evaluators: Sequence[Evaluator], log_probs: Scores, label: int, weighting: Weighting
) -> Explanation:
    """Aggregate the evaluators of attribute relevance of one text.

    Args:
        evaluators: Prompts with their verbalizers.
        log_probs: Mean log-probability of each label's word, shape (evaluators, labels).
        label: Index of the target label.
        weighting: One of `functional.ctrleval.WEIGHTINGS`.
    """
    patterns = []
    for prompt, words in evaluators:
        left, _, right = prompt.partition(WORD_SLOT)
        patterns.append(Pattern(left, right, words[label], words))
    scores, beta = relevance_evaluators(log_probs)
    return explain("attribute_relevance", patterns, scores[:, label], beta, weighting)


def explain(
    aspect: str,
    patterns: Sequence[Pattern],
    scores: Scores,
    beta: Scores,
    weighting: Weighting,
) -> Explanation:
    """Aggregate the scores of one text's pattern evaluators.

    Args:
        aspect: Name of the aspect.
        patterns: One or more.
        scores: Score of each evaluator, shape (evaluators,).
        beta: Unnormalised weights of the paper, shape (evaluators,).
        weighting: One of `functional.ctrleval.WEIGHTINGS`.
    """
    weights = weighting(scores, beta)
    rows = zip(patterns, scores.tolist(), normalize_weights(weights).tolist(), strict=True)
    return Explanation(
        aspect,
        weighted_mean(scores, weights),
        tuple(
            PatternScore(p.left, p.right, p.target, p.candidates, score, weight)
            for p, score, weight in rows
        ),
    )


def to_records(explained: Sequence[Mapping[str, Explanation]]) -> list[dict[str, Any]]:
    """Convert the result of `CTRLEval.explain` to one record per sample and aspect.

    Args:
        explained: For each sample, its explanations by aspect.

    Returns:
        Records for JSON or a table with `sample` (its index), `aspect`, `score` (None for NaN)
        and `evaluators`, a list of records with the fields of `PatternScore`.
    """
    return [
        {"sample": index, **explanation.to_record()}
        for index, aspects in enumerate(explained)
        for explanation in aspects.values()
    ]
