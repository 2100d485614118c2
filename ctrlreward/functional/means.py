"""Means of scores of which some may have failed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def valid_mean(values: npt.NDArray[np.float64]) -> float:
    """Return the mean of the values that are not NaN, shape (n,); NaN if there are none."""
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if valid.size else float("nan")


def valid_row_means(table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `valid_mean` of each row, shape (rows, columns) → (rows,)."""
    return np.array([valid_mean(row) for row in table])
