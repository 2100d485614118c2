"""Figures of a run: curves over steps, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any, TypeAlias

from ctrlreward.plots.style import FAINT, FIRST, SECOND, TEXT, finish_panel, mark_steps, new_figure

Rows: TypeAlias = Sequence[Mapping[str, Any]]

_DPI = 130


def curve(history: Rows, name: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of one metric, skipping rows without a finite value of it.

    Args:
        history: Rows of a `HistoryLogger`'s `metrics.jsonl`, each with `step`.
        name: Logged key, such as `"score/coherence"`.
    """
    points = [(row["step"], row[name]) for row in history if row.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def draw_curves(history: Rows, report: Mapping[str, Any], path: Path) -> None:
    """Draw the curves of a run as a PNG.

    One panel per held-out score (`score/<name>`), with its values before and after training as
    horizontal lines; one per judge, with its value before and after; one for the reward of training
    rollouts; one for KL and entropy.

    Args:
        history: Rows of a `HistoryLogger`'s `metrics.jsonl`.
        report: Content of the `summary.json` that `BeforeAfter` writes.
        path: The PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    names = [name for name in report["before"] if name not in ("generations", "fail_rate")]
    judges = report.get("judges", {})  # older reports have none
    rows = (len(names) + len(judges) + 4) // 3
    figure = new_figure(4.2 * 3, 3.2 * rows)
    panels = iter(figure.subplots(rows, 3).flat)
    for name in names:
        _draw_score(next(panels), history, report, name)
    for name, judge in judges.items():
        _draw_judge(next(panels), judge, name)
    _draw_reward(next(panels), history)
    _draw_drift(next(panels), history)
    for unused in panels:
        unused.set_visible(False)
    figure.savefig(path, dpi=_DPI)


def draw_front(
    names: Sequence[str],
    kept: Mapping[int, Sequence[float]],
    pruned: Mapping[int, Sequence[float]],
    path: Path,
) -> None:
    """Draw kept and pruned checkpoints as a PNG, one panel per pair of metrics.

    The front of two metrics is drawn as a line. With more metrics each panel is a projection, and
    its points are not connected.

    Args:
        names: Names of the k metrics, k ≥ 2.
        kept: Step of each checkpoint on the Pareto front → its k values.
        pruned: Step of each dominated checkpoint → its k values.
        path: The PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    pairs = list(combinations(range(len(names)), 2))
    figure = new_figure(4.2 * len(pairs), 3.6)
    panels = figure.subplots(1, len(pairs), squeeze=False).flat
    for panel, (x, y) in zip(panels, pairs, strict=True):
        dominated = [(values[x], values[y]) for values in pruned.values()]
        front = [(values[x], values[y]) for values in kept.values()]
        panel.scatter(*_columns(dominated), color=FAINT, s=18, label="pruned")
        panel.plot(
            *_columns(sorted(front)),
            color=FIRST,
            linestyle="-" if len(names) == 2 else "",
            marker="o",
            markersize=4.5,
            label="kept",
        )
        mark_steps(panel, kept, front)
        finish_panel(panel, "checkpoints by step", names[x], names[y], legend=True)
    figure.savefig(path, dpi=_DPI)


def _draw_score(panel: Any, history: Rows, report: Mapping[str, Any], name: str) -> None:
    """Draw a held-out score over steps, and the reported values of `BeforeAfter` as lines."""
    steps, values = curve(history, f"score/{name}")
    panel.plot(steps, values, color=FIRST, marker="o", markersize=3.5, label="validation")
    for phase, style in (("before", ":"), ("after", "--")):
        value = report[phase][name]
        if value is not None:
            panel.axhline(value, color=SECOND, linestyle=style, linewidth=1.2, label=phase)
    finish_panel(panel, f"held-out {name.replace('_', ' ')}", "step", legend=True)


def _draw_judge(panel: Any, judge: Mapping[str, Any], name: str) -> None:
    """Draw a judge before and after training; the legend has the difference and its interval."""
    before, after = (_number(judge[key]) for key in ("before", "after"))
    low, high = map(_number, judge["difference_ci95"])
    label = f"{after - before:+.3f} (95 % interval {low:+.3f} to {high:+.3f})"
    panel.plot([0, 1], [before, after], color=SECOND, marker="o", markersize=4.5, label=label)
    panel.set_xlim(-0.4, 1.4)
    panel.set_xticks([0, 1], ["before", "after"])
    finish_panel(panel, f"judge: {name.replace('_', ' ')}", "", legend=True)


def _draw_reward(panel: Any, history: Rows) -> None:
    steps, values = curve(history, "reward/total")
    panel.plot(steps, values, color=FIRST, alpha=0.3, linewidth=1)
    panel.plot(steps, _smoothed(values), color=FIRST, label="reward of rollouts, smoothed")
    finish_panel(panel, "training reward", "step", legend=True)


def _draw_drift(panel: Any, history: Rows) -> None:
    """Draw KL to the untuned policy on the left axis and entropy on the right one."""
    panel.plot(*curve(history, "policy/kl"), color=FIRST)
    panel.set_ylabel("KL, nats per token", color=FIRST, fontsize=8)
    twin = panel.twinx()
    twin.plot(*curve(history, "policy/entropy"), color=SECOND)
    twin.set_ylabel("entropy, nats per token", color=SECOND, fontsize=8)
    twin.tick_params(labelsize=8, colors=TEXT)
    twin.spines["top"].set_visible(False)
    finish_panel(panel, "drift", "step")


def _number(value: float | None) -> float:
    """Return NaN, which is not drawn, for None."""
    return nan if value is None else value


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _smoothed(values: Sequence[float], weight: float = 0.8) -> list[float]:
    """Return the exponential moving average with bias correction, as in Adam.

    Args:
        values: n values.
        weight: Weight of the past in [0, 1).

    Returns:
        n averages; a constant series stays as it is.
    """
    smoothed, average = [], 0.0
    for i, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        smoothed.append(average / (1 - weight**i))
    return smoothed
