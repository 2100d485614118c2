"""Figures of a run: curves over steps, the Pareto front, and the style of all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ctrlreward.extras import import_extra
from ctrlreward.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows: TypeAlias = Sequence[Mapping[str, Any]]

SERIES = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")


def curve(history: Rows, name: str) -> tuple[list[int], list[float]]:
    """Return the steps and finite values of one metric; of several at one step, the last."""
    logged = ((row["step"], row.get(name)) for row in history)
    points = {step: value for step, value in logged if value is not None and isfinite(value)}
    return sorted(points), [points[step] for step in sorted(points)]


def draw_curves(history: Rows, report: Mapping[str, Any], path: Path) -> None:
    """Draw the curves of a run as a PNG: a panel for each held-out score, reward, KL and entropy.

    A score of `report`, the content of a `summary.json`, has its values before and after training,
    the kept step and the bounds of its constraint. Without one, each logged key has a panel.
    """
    selection, before = report.get("selection", {}), report.get("before", {})
    keys = [f"score/{name}" for name in before if name not in ("fail_rate", "generations")]
    keys += [selection.get("monitor"), *selection.get("constraints", {})] if keys else []
    keys += (
        ["reward/total", "policy/kl", "policy/entropy"] if keys else [k for r in history for k in r]
    )
    shown = [key for key in dict.fromkeys(keys) if key not in (None, "step", "epoch")]
    shown = [key for key in shown if curve(history, key)[0]]
    figure = new_figure(4.2 * min(3, max(1, len(shown))), 3.2 * max(1, -(-len(shown) // 3)))
    for place, key in enumerate(shown, 1):
        panel = figure.add_subplot(-(-len(shown) // 3), min(3, len(shown)), place)
        panel.plot(*curve(history, key), marker="o", markersize=3, label="logged")
        name, kept = key.removeprefix("score/"), selection.get("step")
        last = report.get("steps", 0) if kept is None else kept
        for side, step in (("before", 0), ("after", last)):
            if (value := report.get(side, {}).get(name)) is not None:
                panel.plot(step, value, color=SERIES[1], marker="s", label=side)
        if kept is not None:
            panel.axvline(kept, color="#a1a1aa", linewidth=1, label=f"kept, step {kept}")
        for bound in selection.get("constraints", {}).get(key) or ():
            if bound is not None:
                panel.axhline(bound, color=SERIES[3], linestyle=":", label="constraint")
        title = arrowed(name.replace("_", " "), report.get("directions", {}).get(key))
        finish_panel(panel, title, "step", legend=len(panel.lines) > 1)
    save_figure(figure, path)


def draw_front(
    metrics: Mapping[str, str],
    kept: Mapping[int, Sequence[float]],
    pruned: Mapping[int, Sequence[float]],
    path: Path,
) -> None:
    """Draw kept and pruned checkpoints, step → values of k ≥ 2 metrics, a panel per pair.

    `metrics` maps each to its direction, for the arrows of the axes.
    """
    labels = [arrowed(name, mode) for name, mode in metrics.items()]
    pairs = list(combinations(range(len(labels)), 2))
    figure = new_figure(4.2 * len(pairs), 3.6)
    for place, (x, y) in enumerate(pairs, 1):
        panel = figure.add_subplot(1, len(pairs), place)
        for name, points, color in (("pruned", pruned, "#a1a1aa"), ("kept", kept, SERIES[0])):
            xs, ys = ([values[i] for values in points.values()] for i in (x, y))
            panel.scatter(xs, ys, 18, color, label=name)
        mark_steps(panel, kept, [(values[x], values[y]) for values in kept.values()])
        finish_panel(panel, "checkpoints by step", labels[x], labels[y], legend=True)
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, which needs no display."""
    matplotlib = import_extra("matplotlib.figure", "a figure")
    return matplotlib.Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the suffix, PNG without one, whole or not at all."""
    with whole_file(path) as file:
        figure.savefig(file, dpi=130, format=path.suffix[1:] or "png")


def finish_panel(
    panel: Any,
    title: str,
    x_label: str,
    y_label: str = "",
    *,
    legend: bool = False,
    grid: Literal["both", "x"] = "both",
) -> None:
    """Add title, axis labels and grid to a panel (matplotlib `Axes`) that has its data."""
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xlabel(x_label, fontsize=8)
    panel.set_ylabel(y_label, fontsize=8)
    panel.tick_params(labelsize=8)
    panel.grid(axis=grid, linewidth=0.3)
    if legend:
        panel.legend(fontsize=7, frameon=False)


def arrowed(label: str, mode: str | None) -> str:
    """Return a label with an arrow in the better direction, "max" or "min": `"similarity ↑"`."""
    return label if mode is None else f"{label} {'↑' if mode == 'max' else '↓'}"


def mark_steps(panel: Any, steps: Iterable[int], points: Iterable[tuple[float, float]]) -> None:
    """Write the step of each point next to it."""
    for step, point in zip(steps, points, strict=True):
        panel.annotate(str(step), point, (4, 4), textcoords="offset points", fontsize=7)
