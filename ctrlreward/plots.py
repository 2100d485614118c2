"""Figures of a run: curves over steps, the Pareto front, and the style of all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, zip_longest
from math import hypot, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ctrlreward.extras import import_extra
from ctrlreward.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows: TypeAlias = Sequence[Mapping[str, Any]]

GRID, TEXT = "#e4e4e7", "#3f3f46"
FIRST, SECOND, FAINT, EXCLUDED = "#2563eb", "#d97706", "#a1a1aa", "#dc2626"

_DPI = 130  # of a PNG

_LABEL = 22.0  # pixels between points whose labels do not overlap, at matplotlib's 100 per inch

# For several runs in one panel.
SERIES = (FIRST, SECOND, "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")


def curve(history: Rows, name: str) -> tuple[list[int], list[float]]:
    """Return the steps and finite values of one metric; of several at one step, the last."""
    given = ((row["step"], row.get(name)) for row in history)
    points = {step: value for step, value in given if value is not None and isfinite(value)}
    return sorted(points), [points[step] for step in sorted(points)]


def draw_curves(history: Rows, report: Mapping[str, Any], path: Path) -> None:
    """Draw the curves of a run as a PNG: a panel for each held-out score, reward, KL and entropy.

    A score of `report`, the content of a `summary.json`, has its values before and after training
    with their intervals, the kept step and the bounds of its constraint. A run whose report names
    no scores has a panel per logged key.
    """
    keys = [*_held_out(history, report), "reward/total", "policy/kl", "policy/entropy"]
    keys = [key for key in dict.fromkeys(keys) if curve(history, key)[0] or _ends(report, key)]
    columns = min(3, len(keys)) or 1
    rows = -(-len(keys) // columns) or 1
    figure = new_figure(4.2 * columns, 3.2 * rows)
    for panel, key in zip_longest(figure.subplots(rows, columns, squeeze=False).flat, keys):
        if key is None:
            panel.set_visible(False)
        else:
            _draw(panel, history, report, key)
    save_figure(figure, path)


def draw_front(
    names: Sequence[str],
    kept: Mapping[int, Sequence[float]],
    pruned: Mapping[int, Sequence[float]],
    path: Path,
    modes: Sequence[str] | None = None,
) -> None:
    """Draw kept and pruned checkpoints, step → values of k ≥ 2 metrics, a panel per pair.

    The front of two metrics is drawn as a line. With more metrics each panel is a projection, and
    its points are not connected. `modes`, "max" or "min", are for the arrows of the axes.
    """
    labels = [arrowed(name, mode) for name, mode in zip_longest(names, modes or ())]
    pairs = list(combinations(range(len(names)), 2))
    figure = new_figure(4.2 * len(pairs), 3.6)
    panels = figure.subplots(1, len(pairs), squeeze=False).flat
    for panel, (x, y) in zip(panels, pairs, strict=True):
        front = [(values[x], values[y]) for values in kept.values()]
        dominated = [[values[i] for values in pruned.values()] for i in (x, y)]
        panel.scatter(*dominated, color=FAINT, s=18, label="pruned")
        line = "-" if len(names) == 2 else ""
        xy = zip(*sorted(front), strict=True)
        panel.plot(*xy, color=FIRST, linestyle=line, marker="o", markersize=4.5, label="kept")
        mark_steps(panel, kept, front)
        finish_panel(panel, "checkpoints by step", labels[x], labels[y], legend=True)
    save_figure(figure, path)


def _held_out(history: Rows, report: Mapping[str, Any]) -> list[str]:
    """Return the keys of a report, else all that no other panel draws; no fail rate that is 0."""
    logged = dict.fromkeys(key for row in history for key in row)
    names = [name for name in report.get("before", {}) if name != "generations"]
    selection = report.get("selection", {})
    watched = [selection.get("monitor"), *selection.get("constraints", {})]
    keys = [*(f"score/{name}" for name in names), *report.get("scores", {})]
    keys += [key for key in watched if key in logged]
    elsewhere = ("policy/", "reward/", "rollout/", "time/", "shaping/")
    keys = keys or [
        key
        for key in logged
        if key not in ("step", "epoch")
        and not key.endswith(("_std", "/scored_step"))
        and not key.startswith(elsewhere)
    ]
    failing = [key for key in logged if key.endswith("/fail_rate") and any(curve(history, key)[1])]
    return [key for key in dict.fromkeys(keys) if not key.endswith("/fail_rate")] + failing


def _ends(report: Mapping[str, Any], key: str) -> dict[str, float]:
    """Return the values of a score before and after training, without failed ones."""
    name = key.removeprefix("score/")
    values = {side: report.get(side, {}).get(name) for side in ("before", "after")}
    return {side: value for side, value in values.items() if value is not None}


def _draw(panel: Any, history: Rows, report: Mapping[str, Any], key: str) -> None:
    steps, values = curve(history, key)
    selection = report.get("selection", {})
    kept = selection.get("step")
    name = key.removeprefix("score/")
    panel.plot(steps, values, color=FIRST, marker="o", markersize=3, label="logged")
    last = steps[-1] if steps else report.get("steps", 1)
    for side, value in _ends(report, key).items():
        step = 0 if side == "before" else last if kept is None else kept
        low, high = report.get("intervals", {}).get(side, {}).get(name) or (None, None)
        reach = None
        if low is not None and high is not None:
            reach = [[max(0.0, value - low)], [max(0.0, high - value)]]
        panel.errorbar([step], [value], reach, color=SECOND, marker="s", capsize=3, label=side)
    if kept is not None:
        panel.axvline(kept, color=FAINT, linewidth=1, zorder=0, label=f"kept, step {kept}")
    for bound in selection.get("constraints", {}).get(key) or ():
        if bound is not None:
            panel.axhline(bound, color=EXCLUDED, linewidth=1, linestyle=":", label="constraint")
    panel.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    title = arrowed(name.replace("_", " "), report.get("directions", {}).get(key))
    finish_panel(panel, title, "step", legend=len(panel.get_legend_handles_labels()[0]) > 1)


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
