"""Colours, empty figures and axes styling shared by all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import hypot, isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctrlreward.extras import import_extra
from ctrlreward.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID, TEXT = "#e4e4e7", "#3f3f46"
FIRST, SECOND, FAINT, EXCLUDED = "#2563eb", "#d97706", "#a1a1aa", "#dc2626"

_DPI = 130  # of a PNG

_LABEL = 22.0  # pixels between points whose labels do not overlap, at matplotlib's 100 per inch

# For several runs in one panel.
SERIES = (FIRST, SECOND, "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, which needs no display."""
    matplotlib = import_extra("matplotlib.figure", "a figure")
    return matplotlib.Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the suffix, PNG without one, whole or not at all."""
    with whole_file(path) as file:
        figure.savefig(file, dpi=_DPI, format=path.suffix[1:] or "png")


def finish_panel(
    panel: Any,
    title: str,
    x_label: str,
    y_label: str | None = None,
    *,
    legend: bool = False,
    grid: Literal["both", "x"] = "both",
) -> None:
    """Add title, axis labels and grid to a panel (matplotlib `Axes`) that has its data."""
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


def arrowed(label: str, mode: str | None) -> str:
    """Return a label with an arrow in the better direction, "max" or "min": `"similarity ↑"`."""
    return label if mode is None else f"{label} {'↑' if mode == 'max' else '↓'}"


def plain(value: float) -> str:
    """Return a number in few characters: `"0.250"`, `"41.920"`, `"1,797,222"`, `"1.23e+12"`.

    A number that rounds to 0 is printed without a sign.
    """
    if abs(value) >= 1e9:
        return f"{value:.2e}"
    text = f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.3f}"
    return "0.000" if text == "-0.000" else text


def signed(value: float) -> str:
    """Return a difference with its sign, but 0 without: `"+0.250"`, `"0.000"`."""
    text = plain(value)
    return text if text == "0.000" or text.startswith("-") else f"+{text}"


def change_text(change: Mapping[str, Any]) -> str:
    """Return the `difference` of an entry of `summary.json`, and its 95 % interval."""
    difference, (low, high) = change["difference"], change["difference_ci95"]
    if difference is None or isnan(difference):
        return "undefined, since a side has too few texts with a score"
    if low is None or not isfinite(low):
        return f"{signed(difference)} (no interval, since all groups changed alike)"
    return f"{signed(difference)} (95 % interval {signed(low)} to {signed(high)})"


def mark_steps(panel: Any, steps: Iterable[int], points: Iterable[tuple[float, float]]) -> None:
    """Write the step of each point next to it, but not over the label of a later one."""
    panel.autoscale_view()
    labelled: list[tuple[float, float]] = []
    for step, point in sorted(zip(steps, points, strict=True), reverse=True):
        if not all(map(isfinite, point)):
            continue
        x, y = (float(value) for value in panel.transData.transform(point))
        if any(hypot(x - left, y - top) < _LABEL for left, top in labelled):
            continue
        labelled.append((x, y))
        offset = {"xytext": (4, 4), "textcoords": "offset points"}
        panel.annotate(str(step), point, fontsize=7, color=TEXT, **offset)
