"""The pictures of a run: scores, reward and drift over steps, trajectories, the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

from ctrlreward.callbacks.history import curve

Points: TypeAlias = tuple[Sequence[float], Sequence[float]]

_GRID, _TEXT = "#e4e4e7", "#3f3f46"
_FIRST, _SECOND, _FAINT = "#2563eb", "#d97706", "#a1a1aa"


def draw_curves(history: list[dict[str, Any]], report: Mapping[str, Any], path: Path) -> None:
    """Draws the curves of a run with `BeforeAfter`'s report as a PNG.

    One panel per held-out score (`score/<name>`), with the values before and after training as
    reported; one for the reward of training rollouts; one for KL and entropy.

    Args:
        history: Rows of `metrics.jsonl`.
        report: What `summary.json` holds.
        path: Of the PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    names = [name for name in report["before"] if name not in ("generations", "fail_rate")]
    rows = (len(names) + 4) // 3
    figure = _figure(4.2 * 3, 3.2 * rows)
    panels = iter(figure.subplots(rows, 3).flat)
    for name in names:
        panel = next(panels)
        steps, values = curve(history, f"score/{name}")
        panel.plot(steps, values, color=_FIRST, marker="o", markersize=3.5, label="validation")
        _mark_ends(panel, report, name)
        _finish(panel, f"held-out {name.replace('_', ' ')}")
    panel = next(panels)
    steps, values = curve(history, "reward/total")
    panel.plot(steps, values, color=_FIRST, alpha=0.3, linewidth=1)
    panel.plot(steps, _smoothed(values), color=_FIRST, label="reward of rollouts, smoothed")
    _finish(panel, "training reward")
    panel = next(panels)
    panel.plot(*curve(history, "policy/kl"), color=_FIRST, label="KL to the untuned policy")
    panel.set_ylabel("KL, nats per token", color=_FIRST, fontsize=8)
    twin = panel.twinx()
    twin.plot(*curve(history, "policy/entropy"), color=_SECOND)
    twin.set_ylabel("entropy, nats per token", color=_SECOND, fontsize=8)
    twin.tick_params(labelsize=8, colors=_TEXT)
    twin.spines["top"].set_visible(False)
    _finish(panel, "drift", legend=False)
    for unused in panels:
        unused.set_visible(False)
    figure.savefig(path, dpi=130)


def draw_front(
    names: Sequence[str],
    kept: Mapping[int, Sequence[float]],
    pruned: Mapping[int, Sequence[float]],
    path: Path,
) -> None:
    """Draws kept and pruned checkpoints as a PNG, one panel per pair of metrics.

    Two metrics make a front that is a line; of more, each panel shows a projection, without one.

    Args:
        names: Of the k metrics, for the axes; k is at least 2.
        kept: Step of each checkpoint on the front → its k values.
        pruned: The same of those that were dominated.
        path: Of the PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    pairs = list(combinations(range(len(names)), 2))
    figure = _figure(4.2 * len(pairs), 3.6)
    panels = figure.subplots(1, len(pairs), squeeze=False).flat
    for panel, (x, y) in zip(panels, pairs, strict=True):
        panel.scatter(
            [values[x] for values in pruned.values()],
            [values[y] for values in pruned.values()],
            color=_FAINT,
            s=18,
            label="pruned",
        )
        front = sorted((values[x], values[y]) for values in kept.values())
        panel.plot(
            [point[0] for point in front],
            [point[1] for point in front],
            color=_FIRST,
            linestyle="-" if len(names) == 2 else "",
            marker="o",
            markersize=4.5,
            label="kept",
        )
        for step, values in kept.items():
            panel.annotate(
                str(step),
                (values[x], values[y]),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
                color=_TEXT,
            )
        _finish(panel, "checkpoints by step", x_label=names[x])
        panel.set_ylabel(names[y], fontsize=8, color=_TEXT)
    figure.savefig(path, dpi=130)


def draw_trajectories(
    steps: Sequence[int], panels: Sequence[tuple[tuple[str, str], Points]], path: Path
) -> None:
    """Draws how a run went through pairs of metrics as a PNG, one panel a pair.

    Args:
        steps: Of the n validations; each point is marked with its own.
        panels: Names of the metrics along x and y, and the values of both, n each.
        path: Of the PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = _figure(4.6 * len(panels), 3.8)
    for panel, ((x_name, y_name), (xs, ys)) in zip(
        figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True
    ):
        panel.plot(xs, ys, color=_FAINT, linewidth=1)
        points = panel.scatter(xs, ys, c=steps, cmap="viridis", s=22, zorder=2)
        for step, x, y in zip(steps, xs, ys, strict=True):
            panel.annotate(str(step), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
        _finish(panel, f"{y_name} against {x_name}", legend=False, x_label=x_name)
        panel.set_ylabel(y_name, fontsize=8, color=_TEXT)
    figure.colorbar(points, ax=figure.axes, label="step", shrink=0.8)
    figure.savefig(path, dpi=130)


def _figure(width: float, height: float) -> Any:
    """An empty figure of that many inches; it needs no display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'ctrlreward[demo]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _mark_ends(panel: Any, report: Mapping[str, Any], name: str) -> None:
    """The reported values, on prompts of their own, as horizontal lines."""
    for phase, style in (("before", ":"), ("after", "--")):
        value = report[phase][name]
        if value is not None:
            panel.axhline(value, color=_SECOND, linestyle=style, linewidth=1.2, label=phase)


def _smoothed(values: list[float], weight: float = 0.8) -> list[float]:
    """Exponential moving average, freed of its start's bias."""
    smoothed, average = [], 0.0
    for i, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        smoothed.append(average / (1 - weight**i))
    return smoothed


def _finish(panel: Any, title: str, legend: bool = True, x_label: str = "step") -> None:
    panel.set_title(title, fontsize=10, color=_TEXT, loc="left")
    panel.set_xlabel(x_label, fontsize=8, color=_TEXT)
    panel.tick_params(labelsize=8, colors=_TEXT)
    panel.grid(color=_GRID, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    if legend:
        panel.legend(fontsize=7, frameon=False)
