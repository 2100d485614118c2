"""Means with standard deviations over random draws, as curves in one panel per quantity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.plots.style import FAINT, FIRST, SECOND, finish_panel, new_figure

Floats: TypeAlias = npt.NDArray[np.float64]

# Curves of one panel: by label, the means and standard deviations at each x; NaN leaves a gap.
Curves: TypeAlias = Mapping[str, tuple[Floats, Floats]]


def draw_deviations(
    panels: Mapping[str, Curves],
    x: Floats,
    x_label: str,
    y_label: str,
    path: Path,
) -> None:
    """Draw mean curves in bands of one standard deviation, as a PNG.

    Args:
        panels: Up to three curves per panel, arrays of shape (points,), by the panel's title.
        x: Positions of the points, shape (points,), the same in all panels.
        x_label: Label of the x axes.
        y_label: Label of the y axis.
        path: The PNG; its folder is made.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(3.6 * len(panels), 3.0)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False).flat
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for (label, (mean, deviation)), color in zip(
            curves.items(), (FIRST, SECOND, FAINT), strict=False
        ):
            panel.plot(x, mean, color=color, linewidth=1.4, marker="o", markersize=2.5, label=label)
            panel.fill_between(
                x, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0
            )
        panel.xaxis.get_major_locator().set_params(integer=True)
        finish_panel(panel, title, x_label, legend=True)
    figure.axes[0].set_ylabel(y_label, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
