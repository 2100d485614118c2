"""Trend test: does a curve rise more than a random walk?"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# The steps between 16 values have 32,768 sign patterns, a few milliseconds to enumerate.
LONGEST = 16


def rising_p_value(values: npt.ArrayLike) -> float:
    """Return the one-sided p-value of a rise, exact under a random walk, in [2^-(n-1), 1].

    The statistic is Kendall's S, compared with S of all curves whose steps have other signs: for a
    random walk with steps symmetric about 0, of any and changing size, P(p ≤ α) ≤ α. For
    independent noise the test is conservative. `values` are finite and in order of time, shape
    (n,), n ≤ 16. 1 for fewer than two values, or if nothing changes.

    Raises:
        ValueError: More than 16 values, wrong shape, NaN or infinity.

    Examples:
        >>> rising_p_value([0.1, 0.2, 0.4])  # 1 of 4 patterns of signs has no falling pair
        0.25
    """
    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim != 1 or len(curve) > LONGEST:
        raise ValueError(f"values must be one row of at most {LONGEST}, got shape {curve.shape}")
    if not np.isfinite(curve).all():
        place = int(np.flatnonzero(~np.isfinite(curve))[0])
        raise ValueError(f"values[{place}] must be finite, got {curve[place]}")
    if len(curve) < 2:
        return 1.0
    steps = np.diff(curve)
    # Half of the patterns suffice: flipping all steps negates the score.
    rounding = 1e-6 * float(np.abs(curve).max())  # since logs may be in float32
    scores = _kendall_scores(_signs(len(steps)) * steps, rounding)
    observed = scores[0]
    as_high = np.count_nonzero(scores >= observed) + np.count_nonzero(-scores >= observed)
    return float(as_high) / (2 * len(scores))


@lru_cache(maxsize=LONGEST)
def _signs(n: int) -> Floats:
    """Return all sign patterns of n steps that start with +1, shape (2^(n-1), n), all +1 first."""
    rest = list(itertools.product((1.0, -1.0), repeat=n - 1))
    return np.column_stack([np.ones(len(rest)), np.reshape(rest, (len(rest), n - 1))])


def _kendall_scores(steps: Floats, rounding: float) -> npt.NDArray[np.int64]:
    """Return Kendall's S of each curve, given its steps, shape (rows, n - 1) → (rows,)."""
    paths = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
    scores = np.zeros(len(paths), dtype=np.int64)
    for lag in range(1, paths.shape[1]):
        change = paths[:, lag:] - paths[:, :-lag]
        scores += np.count_nonzero(change > rounding, axis=1)
        scores -= np.count_nonzero(change < -rounding, axis=1)
    return scores
