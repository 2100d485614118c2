"""Inverse word frequency: how much a rare token counts in CTRLEval."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def inverse_frequency(counts: npt.ArrayLike, sentences: float) -> npt.NDArray[np.float64]:
    """IWF(w) = log(1 + |C|) / f_w of CTRLEval (Ke et al., ACL 2022).

    Args:
        counts: f_w, how many sentences of the corpus hold token w, shape (vocabulary,).
        sentences: |C|, how many sentences the corpus has.

    Returns:
        Shape (vocabulary,), ≥ 0: high for rare tokens, 0 for those that never occur.
    """
    counts = np.asarray(counts, dtype=np.float64)
    seen = counts > 0
    return np.where(seen, np.log1p(sentences) / np.where(seen, counts, 1.0), 0.0)


def log_inverse_frequency(counts: npt.ArrayLike, sentences: float) -> npt.NDArray[np.float64]:
    """log((1+|C|) / f_w): inverse frequency as information retrieval weighs words (idf).

    IWF spans as many orders of magnitude as the frequencies do, so that of two sentences the one
    with the rarer word has nearly all the weight; this spans one, and an estimated frequency may
    be wrong by half without harm.

    Args:
        counts: f_w, in how many sentences of the corpus token w is, shape (vocabulary,).
        sentences: |C|, how many sentences the corpus has; no token is in more.

    Returns:
        Shape (vocabulary,), ≥ 0: high for rare tokens, 0 for those that never occur.
    """
    counts = np.asarray(counts, dtype=np.float64)
    seen = counts > 0
    return np.where(seen, np.log1p(sentences) - np.log(np.where(seen, counts, 1.0)), 0.0)
