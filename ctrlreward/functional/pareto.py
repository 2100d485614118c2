"""Pareto front of points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def non_dominated(values: ArrayLike, directions: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the Pareto front, shape (n,): the points that no other point dominates.

    A point dominates another if it is at least as good in every value and better in one. `values`
    have shape (n, k), infinity is allowed; `directions` are "max" or "min" for each of the k. A
    ValueError for another direction or shape, or NaN, which cannot be compared.

    Examples:
        >>> non_dominated([[0.9, 40], [0.8, 20], [0.7, 30]], ["max", "min"])
        array([ True,  True, False])
    """
    if not directions or {*directions} - {"max", "min"}:
        raise ValueError(f"directions must be 'max' or 'min' for each value, got {directions!r}")
    points = np.asarray(values, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != len(directions) or np.isnan(points).any():
        raise ValueError(
            "values must have one row per point and one column per direction, without NaN, got "
            f"{np.isnan(points).sum()} NaN in shape {points.shape} for {len(directions)} directions"
        )
    signed = points * np.array([1.0 if direction == "max" else -1.0 for direction in directions])
    dominated = [
        bool(((signed >= point).all(axis=1) & (signed > point).any(axis=1)).any())
        for point in signed
    ]
    return ~np.array(dominated, dtype=np.bool_)
