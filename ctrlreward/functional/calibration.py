"""Calibration: how likely a target is in any context, and the scores without it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def label_bias(log_probs: npt.ArrayLike) -> Floats:
    """Return how much each evaluator favours the word of each label, independent of the text.

    Zhao et al., ICML 2021 (https://arxiv.org/abs/2102.09690, section 4). With ℓ_ijk the mean token
    log-probability of the word of label k under evaluator j after the i-th of n reference texts,
    shape (texts, evaluators, labels), one or more of each and finite, and K labels:

        b_jk = 1/n Σ_i ℓ_ijk − 1/(nK) Σ_i Σ_m ℓ_ijm

    Subtract it from the log-probabilities of a text. Nats, shape (evaluators, labels); positive for
    a favoured word. Each row sums to 0. Other arrays raise a ValueError.

    Examples:
        >>> label_bias([[[-1.0, -4.0]], [[-2.0, -3.0]]])
        array([[ 1., -1.]])
    """
    values = np.asarray(log_probs, dtype=np.float64)
    if values.ndim != 3 or not values.size or not np.isfinite(values).all():
        raise ValueError(
            "log_probs must have shape (texts, evaluators, labels), one or more of each, and be "
            f"finite, got {values.shape} and {(~np.isfinite(values)).sum()} that are not"
        )
    means = values.mean(axis=0)
    return np.asarray(means - means.mean(axis=1, keepdims=True))


def context_gain(log_probs: npt.ArrayLike, neutral: npt.ArrayLike) -> Floats:
    """Return how well targets fit their context, with half of their neutral likelihood subtracted.

    With ℓ(y | x) ≤ 0 the mean token log-probability of target y in its context x, shape (targets,),
    and n_i the contexts that are uninformative about it, shape (targets, contexts):

        ℓ(y | x) − ½ · 1/n Σ_i ℓ(y | n_i)

    Nats, shape (targets,); higher is better. At most 0: a target that is copied from its context,
    which makes it certain, gains no more than that.

    Examples:
        >>> context_gain([-3.0, -0.1], [[-4.0, -4.0], [-3.0, -5.0]])
        array([-1.,  0.])
    """
    priors = np.asarray(neutral, dtype=np.float64).mean(axis=1)
    return np.minimum(np.asarray(log_probs, dtype=np.float64) - priors / 2, 0.0)
