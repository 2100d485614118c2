"""CTRLEval (Ke et al., ACL 2022): patterns with a blank, and how their scores are folded.

Each aspect turns a text into patterns with one blank each; an infilling model says how likely the
blank's true filling is, and the scores of the patterns are averaged with weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def beta_weights(scores: Floats, beta: Floats) -> Floats:
    """The paper's: NISF weights, or for attribute relevance the words' probability (eq. 6)."""
    return beta


def mean_weights(scores: Floats, beta: Floats) -> Floats:
    """The same weight for all: the score of the text is the plain mean."""
    return np.ones_like(scores)


def max_weights(scores: Floats, beta: Floats) -> Floats:
    """All weight on the evaluator with the highest score, the first of equals."""
    return np.eye(len(scores))[scores.argmax()]


def min_weights(scores: Floats, beta: Floats) -> Floats:
    """All weight on the evaluator with the lowest score, the first of equals."""
    return np.eye(len(scores))[scores.argmin()]


# Scores and β of one text's evaluators, each of shape (evaluators,), to weights of that shape.
Weighting = Callable[[Floats, Floats], Floats]

# How the evaluators of a text are weighted: the paper's weights and the ablations of its Table 5.
WEIGHTINGS: Mapping[str, Weighting] = {
    "beta": beta_weights,
    "mean": mean_weights,
    "max": max_weights,
    "min": min_weights,
}


def weighted_mean(scores: Floats, weights: Floats) -> float:
    """Score of one text: the weighted mean of its evaluators' scores.

    Args:
        scores: Shape (evaluators,): for coherence and consistency the mean log-probability of
            each pattern's target, in (-inf, 0]; for attribute relevance a label's share, in
            [0, 1].
        weights: Of each evaluator, ≥ 0, not yet normalised, shape (evaluators,); for coherence
            and consistency the NISF weight of its target. Where all are 0 the plain mean is
            taken, as in the published implementation.

    Returns:
        A value in the range of the scores; higher is better.
    """
    shares = normalised(weights)
    counted = shares > 0  # nothing of a score of -inf is NaN
    return float(scores[counted] @ shares[counted])


def normalised(weights: Floats) -> Floats:
    """The share that each evaluator has in `weighted_mean`, shape (evaluators,), with sum 1."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(weights.shape, 1 / len(weights))


def relevance_evaluators(log_probs: Floats) -> tuple[Floats, Floats]:
    """What each evaluator of attribute relevance says of one text.

    An evaluator is a prompt with a verbalizer. Its score for a label is the share of the label's
    word among the words of all labels (eq. 7); its weight β is the sum that this share is taken
    of (eq. 6), so that a weighted mean of shares is a share of sums.

    Args:
        log_probs: Mean log-probability of each label's word under each evaluator, shape
            (evaluators, labels).

    Returns:
        The scores, shape (evaluators, labels), in [0, 1], each row with sum 1; and the weights,
        shape (evaluators,), relative to the largest, in [0, 1].
    """
    sums = np.logaddexp.reduce(log_probs, axis=1)
    return np.exp(log_probs - sums[:, None]), np.exp(sums - sums.max())


def label_probabilities(log_probs: Floats, weighting: Weighting = beta_weights) -> Floats:
    """Attribute relevance of one text for every label.

    Args:
        log_probs: As `relevance_evaluators` takes them, shape (evaluators, labels).
        weighting: One of `WEIGHTINGS`.

    Returns:
        Shape (labels,), in [0, 1]. They sum to 1 where the weights are the same for all labels
        (β, mean), not where each label has its own (max, min).
    """
    scores, beta = relevance_evaluators(log_probs)
    return np.array([weighted_mean(column, weighting(column, beta)) for column in scores.T])
