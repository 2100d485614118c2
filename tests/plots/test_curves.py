from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from ctrlreward.plots.curves import _smoothed, curve, draw_curves


def test_a_curve_skips_rows_without_the_metric() -> None:
    rows = [{"step": 0, "a": 1.0}, {"step": 0, "b": 2.0}, {"step": 4, "a": None, "b": 0.0}]
    assert curve(rows, "a") == ([0], [1.0])
    assert curve(rows, "b") == ([0, 4], [2.0, 0.0])
    assert curve(rows, "c") == ([], [])


@pytest.mark.parametrize(("scores", "judges"), [(1, 0), (2, 2), (5, 1)])
def test_any_number_of_scores_and_judges_gets_its_panels(
    scores: int, judges: int, tmp_path: Path
) -> None:
    names = [f"s{i}" for i in range(scores)]
    ends = {**dict.fromkeys(names, 0.5), "fail_rate": 0.0, "generations": 8}
    history = [
        {"step": i, **{f"score/{n}": i / 4 for n in names}, "reward/total": 0.1 * i}
        for i in range(4)
    ]
    judge = {"before": 0.6, "after": None, "difference_ci95": [None, None]}
    report = {"before": ends, "after": {**ends, "s0": None}}
    report["judges"] = {f"j{i}": judge for i in range(judges)}
    draw_curves(history, report, tmp_path / "c.png")
    height, _ = imread(tmp_path / "c.png").shape[:2]
    assert height == pytest.approx(math.ceil((scores + judges + 2) / 3) * 416, abs=2)


def test_a_judge_is_drawn_before_and_after_with_its_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[list[float], list[float], object]] = []
    plot = Axes.plot

    def spy(self: Axes, x: list[float], y: list[float], **options: object) -> object:
        lines.append((list(x), list(y), options.get("label")))
        return plot(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    judge = {"before": 0.6, "after": 0.9, "difference_ci95": [0.2, 0.35]}
    report = {"before": {}, "after": {}, "judges": {"sentiment_auc": judge}}
    draw_curves([], report, tmp_path / "c.png")
    difference = "+0.300 (95 % interval +0.200 to +0.350)"
    assert lines[0] == ([0, 1], [0.6, 0.9], difference)


def test_the_moving_average_of_a_constant_is_the_constant() -> None:
    assert _smoothed([]) == []
    assert _smoothed([3.0] * 5) == pytest.approx([3.0] * 5)
    assert _smoothed([0.0, 1.0], weight=0.5) == pytest.approx([0.0, 0.5 / 0.75])
