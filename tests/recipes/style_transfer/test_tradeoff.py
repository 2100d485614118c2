from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from ctrlreward.recipes.style_transfer.tradeoff import (
    TransferPoint,
    draw_transfer_paths,
    transfer_path,
)

POINTS = [TransferPoint(5, 0.75, 0.5, 30.0), TransferPoint(10, 0.5, 0.75, 40.0)]


@pytest.mark.parametrize("count", [1, 2, 10])
def test_both_panels_have_every_validation_in_order(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    looks: list[object] = []
    marked: list[str] = []
    plot, annotate = Axes.plot, Axes.annotate

    def spy(self: Axes, xs: tuple[float, ...], ys: tuple[float, ...], **options: object) -> object:
        lines.append((xs, ys))
        looks.append((options["label"], options["color"], options["marker"]))
        return plot(self, xs, ys, **options)

    def note(self: Axes, text: str, *arguments: object, **options: object) -> object:
        marked.append(text)
        return annotate(self, text, *arguments, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    monkeypatch.setattr(Axes, "annotate", note)
    draw_transfer_paths([(f"run{i}", POINTS) for i in range(count)], tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 0
    # Error rate against similarity, then similarity against perplexity.
    assert lines == [((0.25, 0.5), (0.5, 0.75)), ((0.5, 0.75), (30.0, 40.0))] * count
    assert len(set(looks)) == count  # each run differs in colour or marker
    assert marked == (["10", "5", "10", "5"] if count == 1 else ["10"] * 2 * count)


curves = st.dictionaries(st.integers(0, 6), st.floats(0, 1) | st.just(math.nan), max_size=5)


@given(curves, curves, curves)
def test_a_path_has_the_steps_of_all_three(
    accuracy: dict[int, float], similarity: dict[int, float], perplexity: dict[int, float]
) -> None:
    path = transfer_path(accuracy, similarity, perplexity)
    expected = [
        (step, accuracy[step], similarity[step], perplexity[step])
        for step in range(7)
        if all(not math.isnan(c.get(step, math.nan)) for c in (accuracy, similarity, perplexity))
    ]
    assert path == expected
