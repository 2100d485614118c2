"""Inverse frequencies of tokens and words, which give more weight to rare ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def inverse_frequency(counts: npt.ArrayLike, sentences: float) -> npt.NDArray[np.float64]:
    """Return IWF(w) = log(1 + |C|) / f_w, the inverse word frequency of CTRLEval.

    Ke et al. (ACL 2022), https://aclanthology.org/2022.acl-long.164, §3.2, eq. 7. `counts` are f_w,
    the number of corpus sentences that contain token w, shape (vocabulary,), `sentences` is |C|.
    Shape (vocabulary,), ≥ 0: high for rare tokens, 0 for tokens that never occur.

    Examples:
        >>> inverse_frequency([1, 2, 0], sentences=9).round(3)  # log 10, its half, never seen
        array([2.303, 1.151, 0.   ])
    """
    counts = np.asarray(counts, dtype=np.float64)
    occurs = counts > 0
    return np.where(occurs, np.log1p(sentences) / np.where(occurs, counts, 1.0), 0.0)


def log_inverse_frequency(counts: npt.ArrayLike, sentences: float) -> npt.NDArray[np.float64]:
    """Return log((1 + |C|) / f_w), the inverse frequency on the scale of idf.

    It spans one order of magnitude, where IWF spans as many as the frequencies do. Arguments and
    shapes are as in `inverse_frequency`; no count may exceed |C|.
    """
    counts = np.asarray(counts, dtype=np.float64)
    occurs = counts > 0
    return np.where(occurs, np.log1p(sentences) - np.log(np.where(occurs, counts, 1.0)), 0.0)
