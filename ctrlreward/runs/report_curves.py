"""Curves of a report: the coordinates of an SVG of 360 × 200 units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any, NamedTuple

_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 348.0, 22.0, 178.0
_MOST_DOTS = 40  # of a curve that has them


class Axis(NamedTuple):
    """Round numbers of an axis, and the function from values to coordinates."""

    ticks: list[float]
    at: Callable[[float], float]


def drawing(chart: Mapping[str, Any], marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parts of a curve, of `contents`, by name; empty if it has no value."""
    points = [point for point in chart["points"] if point[1] is not None]
    if not points:
        return {}
    x = _axis([p[0] for p in points] + [mark["step"] for mark in marks], _LEFT, _RIGHT)
    y = _axis([end for p in points for end in p[1:] if end is not None], _BOTTOM, _TOP, 0.06)
    band = [p for p in points if len(p) == 4 and None not in p]
    ends = [(p[0], p[2]) for p in band] + [(p[0], p[3]) for p in reversed(band)]
    low, high = chart["bounds"] or (None, None)
    shaded = [(_TOP, y.at(high))] if high is not None else []
    shaded += [(y.at(low), _BOTTOM)] if low is not None else []
    return {
        "x_ticks": [(x.at(value), value) for value in x.ticks if value == int(value)],
        "y_ticks": [(y.at(value), value) for value in y.ticks],
        "line": _pairs(points, x, y),
        "band": _pairs(ends, x, y),
        "dots": [(x.at(p[0]), y.at(p[1]), p) for p in points if len(points) <= _MOST_DOTS],
        "shaded": [(max(top, _TOP), min(end, _BOTTOM)) for top, end in shaded],
        "marks": [(x.at(mark["step"]), mark) for mark in marks],
    }


def _axis(values: Sequence[float], start: float, end: float, margin: float = 0.0) -> Axis:
    low, high = min(values), max(values)
    pad = margin * (high - low) if low < high else abs(high) / 10 or 1.0
    low, high = low - pad, high + pad
    power = 10.0 ** floor(log10((high - low) / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= (high - low) / 4)
    ticks = [float(f"{i * step:.10g}") for i in range(ceil(low / step), floor(high / step) + 1)]
    return Axis(ticks, lambda value: round(start + (value - low) / (high - low) * (end - start), 1))


def _pairs(points: Sequence[Sequence[float]], x: Axis, y: Axis) -> str:
    return " ".join(f"{x.at(point[0])},{y.at(point[1])}" for point in points)
