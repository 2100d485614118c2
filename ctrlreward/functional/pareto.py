"""Which of several points no other one beats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def non_dominated(values: ArrayLike, directions: Sequence[str]) -> NDArray[np.bool_]:
    """The Pareto front: the points that no other one dominates.

    A point dominates another where it is at least as good in every value and better in one. Equal
    points don't dominate each other: all of them are on the front, or none is.

    Args:
        values: n points of k values, shape (n, k). Infinity is a value like any other.
        directions: For each of the k values "max" where higher is better, "min" where lower is.

    Returns:
        Which points are on the front, shape (n,).

    Raises:
        ValueError: An unknown direction, another shape, or NaN, which is neither better nor worse.
    """
    unknown = [direction for direction in directions if direction not in ("max", "min")]
    if unknown:
        raise ValueError(f"directions has {unknown[0]!r}: give 'max' or 'min' for each value")
    points = np.asarray(values, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != len(directions) or not directions:
        raise ValueError(
            f"values has the shape {points.shape} for {len(directions)} directions: give a row "
            "per point and a column per direction, at least one"
        )
    if np.isnan(points).any():
        row, column = np.argwhere(np.isnan(points))[0]
        raise ValueError(f"values[{row}, {column}] is NaN: leave the point out")
    signed = points * np.array([1.0 if direction == "max" else -1.0 for direction in directions])
    dominated = [
        bool(((signed >= point).all(axis=1) & (signed > point).any(axis=1)).any())
        for point in signed
    ]
    return ~np.array(dominated, dtype=np.bool_)
