"""Figures of a run: curves over steps, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from ctrlreward.plots.style import (
    EXCLUDED,
    FAINT,
    FIRST,
    SECOND,
    arrowed,
    finish_panel,
    mark_steps,
    new_figure,
    save_figure,
)

Rows: TypeAlias = Sequence[Mapping[str, Any]]


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
