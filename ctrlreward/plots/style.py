"""Colours, empty figures and axes styling shared by all figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from ctrlreward.extras import import_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID, TEXT = "#e4e4e7", "#3f3f46"
FIRST, SECOND, FAINT = "#2563eb", "#d97706", "#a1a1aa"

# Of several runs in one panel.
SERIES = (FIRST, SECOND, "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = import_extra("matplotlib.figure", "a figure")
    return matplotlib.Figure(figsize=(width, height), layout="constrained")


def finish_panel(
    panel: Any,
    title: str,
    x_label: str,
    y_label: str | None = None,
    *,
    legend: bool = False,
    grid: Literal["both", "x"] = "both",
) -> None:
    """Add title, axis labels and grid to a panel that has its data.

    Args:
        panel: matplotlib `Axes`.
        title: Shown at the left; may be empty.
        x_label: Label of the x axis.
        y_label: Label of the y axis; None keeps the current one.
        legend: Whether to show a legend of the labelled artists.
        grid: Axes with grid lines.
    """
    panel.set_title(title, fontsize=10, color=TEXT, loc="left")
    panel.set_xlabel(x_label, fontsize=8, color=TEXT)
    if y_label is not None:
        panel.set_ylabel(y_label, fontsize=8, color=TEXT)
    panel.tick_params(labelsize=8, colors=TEXT)
    panel.grid(axis=grid, color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    if legend:
        panel.legend(fontsize=7, frameon=False)


def mark_steps(panel: Any, steps: Iterable[int], points: Iterable[tuple[float, float]]) -> None:
    """Write the step of each point beside it."""
    for step, point in zip(steps, points, strict=True):
        panel.annotate(
            str(step),
            point,
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=7,
            color=TEXT,
        )
