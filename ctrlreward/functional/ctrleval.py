"""CTRLEval (Ke et al., ACL 2022): pattern scores and weights folded into the score of a text.

https://aclanthology.org/2022.acl-long.164. The score of a text is the weighted mean Σ β_j s_j over
its pattern evaluators, with weights that sum to 1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Weights of a text's evaluators: the paper's β, or all alike.
Weighting = Literal["beta", "mean"]


def weighted_mean(scores: Floats, weights: Floats) -> float:
    """Return the score of one text, the weighted mean of its evaluators' scores; higher is better.

    `scores`, shape (evaluators,), are mean log-probabilities of target tokens, in (-∞, 0], or for
    attribute relevance the shares of one label, in [0, 1]. `weights` ≥ 0 need not sum to 1. If all
    are 0 this is the plain mean, as in the published implementation. NaN without evaluators.

    Examples:
        >>> weighted_mean(np.array([-1.0, -2.0]), np.array([3.0, 1.0]))
        -1.25
    """
    if not len(scores):
        return float("nan")
    counted = weights > 0  # 0 · -inf would be NaN
    if not counted.any():
        return float(scores.mean())
    return float(np.average(scores[counted], weights=weights[counted]))


def normalize_weights(weights: Floats) -> Floats:
    """Scale weights to sum to 1, shape (evaluators,); all 0 become equal weights."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(weights.shape, 1 / len(weights))


def relevance_evaluators(log_probs: Floats) -> tuple[Floats, Floats]:
    """Return scores and weights of the attribute relevance evaluators of one text.

    An evaluator's score for a label is the probability of that label's word divided by the sum over
    the words of all labels (eq. 14). Its weight β is that sum (eqs. 15 and 16). `log_probs` are the
    mean token log-probabilities of the words, shape (evaluators, labels). Scores have that shape,
    in [0, 1], where rows sum to 1; weights, shape (evaluators,), are scaled to a largest of 1.

    Examples:
        >>> relevance_evaluators(np.log([[0.3, 0.1], [0.1, 0.1]]))[1].round(3)
        array([1. , 0.5])
    """
    sums = np.logaddexp.reduce(log_probs, axis=1)
    return np.exp(log_probs - sums[:, None]), np.exp(sums - sums.max())


def label_probabilities(log_probs: Floats, weighting: Weighting = "beta") -> Floats:
    """Return the attribute relevance of one text for every label, shape (labels,), in [0, 1].

    Higher is better; the values sum to 1. `log_probs` are as in `relevance_evaluators`.
    """
    scores, beta = relevance_evaluators(log_probs)
    weights = beta if weighting == "beta" else np.ones_like(beta)
    return np.array([weighted_mean(column, weights) for column in scores.T])
