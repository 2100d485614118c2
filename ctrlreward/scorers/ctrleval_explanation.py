"""Explanations of CTRLEval scores: each pattern evaluator with its score and weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctrlreward.functional.ctrleval import normalize_weights, weighted_mean
from ctrlreward.models.tasks import Blank
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


def likelihood_patterns(blanks: Sequence[Blank]) -> list[Pattern]:
    """Return the patterns of coherence or consistency, whose blanks have one target each."""
    return [Pattern(b.left, b.right, b.targets[0], b.targets) for b in blanks]


def relevance_patterns(evaluators: Sequence[Evaluator], label: int) -> list[Pattern]:
    """Return the patterns of attribute relevance.

    Args:
        evaluators: Prompts with their verbalizers.
        label: Index of the target label.
    """
    patterns = []
    for prompt, words in evaluators:
        left, _, right = prompt.partition(WORD_SLOT)
        patterns.append(Pattern(left, right, words[label], words))
    return patterns


def explanation(
    aspect: str, patterns: Sequence[Pattern], scores: Scores, weights: Scores
) -> Explanation:
    """Explain the score of one text by its pattern evaluators.

    Args:
        aspect: Name of the aspect.
        patterns: What the evaluators are; ignored where there are no scores.
        scores: Score of each evaluator, shape (evaluators,), empty if there is nothing to score.
        weights: Weights ≥ 0 that need not sum to 1, shape (evaluators,).
    """
    if not len(scores):
        return Explanation(aspect, np.nan)
    rows = zip(patterns, scores.tolist(), normalize_weights(weights).tolist(), strict=True)
    evaluators = tuple(
        PatternScore(p.left, p.right, p.target, p.candidates, score, weight)
        for p, score, weight in rows
    )
    return Explanation(aspect, weighted_mean(scores, weights), evaluators)


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
