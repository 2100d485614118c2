"""Figures of a run: curves over steps, and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, zip_longest
from math import isfinite, nan
from pathlib import Path
from typing import Any, TypeAlias

from ctrlreward.plots.style import (
    EXCLUDED,
    FAINT,
    FIRST,
    SECOND,
    TEXT,
    arrowed,
    change_text,
    count_steps,
    finish_panel,
    mark_steps,
    new_figure,
    note,
    save_figure,
)

Rows: TypeAlias = Sequence[Mapping[str, Any]]


def curve(history: Rows, name: str) -> tuple[list[int], list[float]]:
    """Return the steps and finite values of one metric; of several at one step, the last."""
    given = ((row["step"], row.get(name)) for row in history)
    points = {step: value for step, value in given if value is not None and isfinite(value)}
    return sorted(points), [points[step] for step in sorted(points)]


def draw_curves(history: Rows, report: Mapping[str, Any], path: Path) -> None:
    """Draw the curves of a run as a PNG.

    One panel per held-out score, with its values before and after training and their intervals, the
    kept step, and the values that the constraints exclude; one per judge; one for the reward of
    training rollouts; one for KL and entropy. A run without a policy, whose report names
    no scores, has a panel per logged key.
    """
    draw: list[Callable[[Any], None]] = [
        *(
            partial(_draw_score, history=history, report=report, key=key)
            for key in _held_out(history, report)
        ),
        *(partial(_draw_judge, report=report, name=name) for name in report.get("judges", {})),
    ]
    if curve(history, "reward/total")[0]:
        draw.append(partial(_draw_reward, history=history))
    if curve(history, "policy/kl")[0] or curve(history, "policy/entropy")[0]:
        draw.append(partial(_draw_drift, history=history))
    draw = draw or [partial(note, text="no step yet")]
    columns = min(3, len(draw))
    rows = -(-len(draw) // columns)
    figure = new_figure(4.2 * columns, 3.2 * rows)
    for panel, fill in zip_longest(figure.subplots(rows, columns, squeeze=False).flat, draw):
        if fill is None:
            panel.set_visible(False)
        else:
            fill(panel)
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


def _draw_score(panel: Any, history: Rows, report: Mapping[str, Any], key: str) -> None:
    """Draw a held-out score over steps, and its values in `BeforeAfter`."""
    steps, values = curve(history, key)
    selection = report.get("selection", {})
    kept = selection.get("step")
    name = key.removeprefix("score/")
    title = arrowed(name.replace("_", " "), report.get("directions", {}).get(key))
    last = steps[-1] if steps else report.get("steps", 1)
    ends = {"before": 0, "after": last if kept is None else kept}
    if not steps and all(report.get(side, {}).get(name) is None for side in ends):
        note(panel, "no validation yet")
        finish_panel(panel, title, "step")
        return
    label = "validation" if steps else "no validation yet"
    panel.plot(steps, values, color=FIRST, marker="o", markersize=3.5, label=label)
    for side, step in ends.items():
        _draw_point(panel, step, report, side, name, report.get(side, {}).get(name))
    if kept is not None:
        panel.axvline(kept, color=FAINT, linewidth=1, zorder=0, label=f"kept, step {kept}")
    _shade_excluded(panel, selection.get("constraints", {}).get(key))
    count_steps(panel)
    finish_panel(panel, title, "step", legend=len(panel.get_legend_handles_labels()[0]) > 1)


def _draw_point(
    panel: Any, x: float, report: Mapping[str, Any], side: str, name: str, value: float | None
) -> None:
    """Draw a value before or after training as a point with its interval; None is not drawn."""
    if value is None:
        return
    interval: Sequence[Any] = report.get("intervals", {}).get(side, {}).get(name) or (None, None)
    low, high = interval
    known = low is not None and high is not None
    reaches = [[max(0.0, value - low)], [max(0.0, high - value)]] if known else None
    marker, inner = ("s", "white") if side == "before" else ("D", SECOND)
    style = {"marker": marker, "markerfacecolor": inner, "markersize": 5, "linestyle": ""}
    panel.errorbar([x], [value], reaches, color=SECOND, capsize=3, label=side, zorder=3, **style)


def _shade_excluded(panel: Any, bounds: Sequence[float | None] | None) -> None:
    """Shade the values outside of a constraint, each side down or up to the edge of the panel."""
    low, high = bounds or (None, None)
    for bound, above in ((low, False), (high, True)):
        if bound is None:
            continue
        panel.axhline(bound, color=EXCLUDED, linewidth=1, linestyle=":")
        panel.autoscale_view()
        bottom, top = panel.get_ylim()
        label = f"constraint, {'at most' if above else 'at least'} {bound:g}"
        edges = (bound, max(top, bound)) if above else (min(bottom, bound), bound)
        panel.axhspan(*edges, color=EXCLUDED, alpha=0.1, linewidth=0, zorder=0, label=label)
        panel.set_ylim(bottom, top)


def _draw_judge(panel: Any, report: Mapping[str, Any], name: str) -> None:
    """Draw a judge before and after training; the legend has the difference and its interval."""
    judge, sides = report["judges"][name], ("before", "after")
    values = [nan if judge[side] is None else judge[side] for side in sides]
    panel.plot([0, 1], values, color=FAINT, linewidth=1, label=change_text(judge))
    panel.legend(fontsize=7, frameon=False)  # without the points
    for x, side in enumerate(sides):
        _draw_point(panel, x, report, side, name, judge[side])
    panel.set_xlim(-0.4, 1.4)
    panel.set_xticks([0, 1], sides)
    mode = report.get("directions", {}).get(f"judges/{name}")
    finish_panel(panel, arrowed(f"judge: {name.replace('_', ' ')}", mode), "")


def _draw_reward(panel: Any, history: Rows) -> None:
    steps, values = curve(history, "reward/total")
    marker = "o" if len(steps) == 1 else ""
    panel.plot(steps, values, color=FIRST, alpha=0.3, linewidth=1)
    label = "reward of rollouts, smoothed"
    panel.plot(steps, _smoothed(values), color=FIRST, marker=marker, markersize=3.5, label=label)
    count_steps(panel)
    finish_panel(panel, "training reward ↑", "step", legend=True)


def _draw_drift(panel: Any, history: Rows) -> None:
    """Draw KL to the untuned policy on the left axis and entropy on the right one."""
    panel.plot(*curve(history, "policy/kl"), color=FIRST)
    panel.set_ylabel("KL, nats per token", color=FIRST, fontsize=8)
    twin = panel.twinx()
    twin.plot(*curve(history, "policy/entropy"), color=SECOND)
    twin.set_ylabel("entropy, nats per token", color=SECOND, fontsize=8)
    twin.tick_params(labelsize=8, colors=TEXT)
    twin.spines["top"].set_visible(False)
    count_steps(panel)
    finish_panel(panel, "drift", "step")


def _smoothed(values: Sequence[float], weight: float = 0.8) -> list[float]:
    """Return the exponential moving average with bias correction, as in Adam."""
    smoothed, average = [], 0.0
    for i, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        smoothed.append(average / (1 - weight**i))
    return smoothed
