"""Pareto front of points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def non_dominated(values: ArrayLike, directions: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the Pareto front, shape (n,): the points that no other point dominates.

    A point dominates another if it is at least as good in every value and better in one. `values`
    have shape (n, k), infinity is allowed; `directions` are "max" or "min" for each of the k.

    Raises:
        ValueError: Unknown direction, wrong shape, or NaN, which cannot be compared.

    Examples:
        >>> non_dominated([[0.9, 40], [0.8, 20], [0.7, 30]], ["max", "min"])
        array([ True,  True, False])
    """
    unknown = [direction for direction in directions if direction not in ("max", "min")]
    if unknown:
        raise ValueError(f"directions must be 'max' or 'min' for each value, got {unknown[0]!r}")
    points = np.asarray(values, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != len(directions) or not directions:
        raise ValueError(
            "values must have one row per point and one column per direction, at least one, got "
            f"shape {points.shape} for {len(directions)} directions"
        )
    if np.isnan(points).any():
        row, column = np.argwhere(np.isnan(points))[0]
        raise ValueError(f"values[{row}, {column}] is NaN. Leave out this point.")
    signed = points * np.array([1.0 if direction == "max" else -1.0 for direction in directions])
    dominated = [
        bool(((signed >= point).all(axis=1) & (signed > point).any(axis=1)).any())
        for point in signed
    ]
    return ~np.array(dominated, dtype=np.bool_)
