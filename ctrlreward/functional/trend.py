"""Whether a curve of scores rises by more than drifting explains, and whether two part company."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# All ways to turn the steps of this many values around are 32,768, a few milliseconds' work.
LONGEST = 16


class Divergence(NamedTuple):
    """How far one metric has improved while another got worse.

    Attributes:
        p_value: The larger of the two below: both have to hold (intersection-union test, Berger
            1982).
        proxy: One-sided p-value of the proxy's improvement.
        held_out: One-sided p-value of the held-out metric's decline.
    """

    p_value: float
    proxy: float
    held_out: float


def kendall_score(values: npt.ArrayLike) -> int:
    """How many pairs of values rise less how many fall, in order of time (Mann 1945's S).

    Args:
        values: Shape (n,).

    Returns:
        From -n(n-1)/2, always falling, to n(n-1)/2, always rising. Values that differ by less than
        a millionth of the largest are ties.
    """
    curve = np.asarray(values, dtype=np.float64)
    return int(_kendall_scores(np.diff(curve)[None], _rounding(curve))[0])


def rising_p_value(values: npt.ArrayLike) -> float:
    """One-sided p-value of a rise, exact for a curve that only drifts.

    The statistic is that of the Mann-Kendall test, the null hypothesis is not. That of the usual
    test, values in random order, is false of any metric of a run, since a model is much like the
    one it was a validation ago: random walks look like trends to it. Here each step from one
    value to the next may as well have gone the other way, so the score is compared with those of
    all curves that the steps make with their signs turned around in every way. Under random walks
    with steps symmetric about 0, of whatever and changing size, P(p ≤ α) ≤ α; on independent
    noise, whose steps take each other back, the test is conservative.

    Args:
        values: In order of time, higher later where the curve rises, shape (n,), n ≤ 16, finite.

    Returns:
        In [2^-(n-1), 1]; 1 where there are fewer than two values, or no step at all.

    Raises:
        ValueError: More than 16 values, another shape, NaN or infinity.
    """
    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim != 1 or len(curve) > LONGEST:
        raise ValueError(f"values has the shape {curve.shape}: give one row of at most {LONGEST}")
    if not np.isfinite(curve).all():
        place = int(np.flatnonzero(~np.isfinite(curve))[0])
        raise ValueError(f"values[{place}] = {curve[place]}: leave out what is no finite number")
    if len(curve) < 2:
        return 1.0
    steps = np.diff(curve)
    # Half of the signs do: turning all steps around turns the score's sign around.
    scores = _kendall_scores(_signs(len(steps)) * steps, _rounding(curve))
    observed = scores[0]
    as_high = np.count_nonzero(scores >= observed) + np.count_nonzero(-scores >= observed)
    return float(as_high) / (2 * len(scores))


def divergence(
    proxy: npt.ArrayLike,
    held_out: npt.ArrayLike,
    proxy_mode: str = "max",
    held_out_mode: str = "max",
) -> Divergence:
    """How sure it is that a proxy improves while a held-out metric gets worse.

    Where the proxy does improve, as it should, the level is that of the held-out metric's test
    alone; nothing is assumed of how the two hang together.

    Args:
        proxy: What is optimised, one value a validation, shape (n,), n ≤ 16.
        held_out: What should improve with it, at the same validations, shape (n,).
        proxy_mode: "max" where higher is better, "min" where lower is.
        held_out_mode: The same of the held-out metric.

    Raises:
        ValueError: The lengths differ, or what `rising_p_value` raises.
    """
    better = _signed(proxy, proxy_mode)
    worse = -_signed(held_out, held_out_mode)
    if better.shape != worse.shape:
        raise ValueError(f"proxy has the shape {better.shape} and held_out {worse.shape}")
    rise, fall = rising_p_value(better), rising_p_value(worse)
    return Divergence(max(rise, fall), rise, fall)


def _signed(values: npt.ArrayLike, mode: str) -> Floats:
    return np.asarray(values, dtype=np.float64) * (1.0 if mode == "max" else -1.0)


@lru_cache(maxsize=LONGEST)
def _signs(n: int) -> Floats:
    """All signs of n steps whose first is +1, shape (2^(n-1), n); the first row is all +1."""
    rest = list(itertools.product((1.0, -1.0), repeat=n - 1))
    return np.column_stack([np.ones(len(rest)), np.reshape(rest, (len(rest), n - 1))])


def _rounding(values: Floats) -> float:
    """Below this a difference is rounding: Lightning keeps logged values in float32."""
    return 1e-6 * float(np.abs(values).max(initial=0.0))


def _kendall_scores(steps: Floats, rounding: float) -> npt.NDArray[np.int64]:
    """The score of each row's curve, from its steps, shape (rows, n - 1) → (rows,)."""
    paths = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
    scores = np.zeros(len(paths), dtype=np.int64)
    for lag in range(1, paths.shape[1]):
        change = paths[:, lag:] - paths[:, :-lag]
        scores += np.count_nonzero(change > rounding, axis=1)
        scores -= np.count_nonzero(change < -rounding, axis=1)
    return scores
