from __future__ import annotations

import errno
import math
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from ctrlreward.files import JsonLog
from ctrlreward.plots import curve, draw_curves, draw_front
from ctrlreward.runs import plot_run


def test_a_curve_skips_rows_without_the_metric() -> None:
    rows = [{"step": 0, "a": 1.0}, {"step": 0, "b": 2.0}, {"step": 4, "a": None, "b": 0.0}]
    assert curve(rows, "a") == ([0], [1.0])
    assert curve(rows, "b") == ([0, 4], [2.0, 0.0])
    assert curve(rows, "c") == ([], [])


@pytest.mark.parametrize("scores", [1, 2, 5])
def test_any_number_of_scores_gets_its_panels(scores: int, tmp_path: Path) -> None:
    names = [f"s{i}" for i in range(scores)]
    ends = {**dict.fromkeys(names, 0.5), "fail_rate": 0.0, "generations": 8}
    history = [
        {"step": i, **{f"score/{n}": i / 4 for n in names}, "reward/total": 0.1 * i}
        for i in range(4)
    ]
    report = {"before": ends, "after": {**ends, "s0": None}}
    report["intervals"] = {"before": {"s0": [0.25, None]}}  # of a score with one bound
    draw_curves(history, report, tmp_path / "c.png")
    height, _ = imread(tmp_path / "c.png").shape[:2]
    assert height == pytest.approx(math.ceil((scores + 1) / 3) * 416, abs=2)


REPORT = {
    "before": {"relevance": 0.5, "fail_rate": 0.0, "generations": 8},
    "after": {"relevance": 0.8, "fail_rate": 0.0, "generations": 8},
    "intervals": {"before": {"relevance": [0.4, 0.6]}, "after": {"relevance": [0.7, 0.9]}},
    "selection": {"monitor": "score/relevance", "step": 24, "constraints": {"kl": [None, 0.5]}},
    "directions": {"score/relevance": "max", "kl": "min"},
}


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were saved, with their limits and ticks settled."""
    monkeypatch.chdir(tmp_path)
    figures: list[Figure] = []

    def save(self: Figure, path: Path, **_: object) -> None:
        self.draw_without_rendering()
        figures.append(self)

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


@pytest.mark.parametrize("validations", [0, 1, 20])
def test_a_score_shows_what_was_decided(validations: int, drawn: list[Figure]) -> None:
    steps = [4] if validations == 1 else [2 * i for i in range(1, validations + 1)]
    history = [{"step": s, "score/relevance": 0.5 + 0.01 * s, "kl": 0.02 * s} for s in steps]
    kept = {0: None, 1: 4, 20: 24}[validations]
    report = {**REPORT, "selection": {**REPORT["selection"], "step": kept}}
    draw_curves(history, report, Path("c.png"))
    relevance, *kl = [panel for panel in drawn[0].axes if panel.get_visible()]
    handles, labels = relevance.get_legend_handles_labels()
    legend = dict(zip(labels, handles, strict=True))
    assert relevance.get_title("left") == "relevance ↑"
    ticks = [t for t in relevance.get_xticks() if relevance.get_xlim()[0] <= t]
    assert all(tick == round(tick) for tick in ticks)
    for side, interval, x in (("before", [0.4, 0.6], 0), ("after", [0.7, 0.9], kept)):
        (segment,) = legend[side].lines[2][0].get_segments()
        assert segment[:, 1] == pytest.approx(interval)
        assert kept is None or segment[0, 0] == x
    if validations == 0:
        assert kl == []
        return
    assert list(legend["logged"].get_xdata()) == steps
    assert list(legend[f"kept, step {kept}"].get_xdata()) == [kept, kept]
    assert kl[0].get_title("left") == "kl ↓"
    bound = kl[0].get_legend_handles_labels()
    assert dict(zip(*reversed(bound), strict=True))["constraint"].get_ydata() == [0.5, 0.5]


def test_a_run_without_a_value_is_drawn(drawn: list[Figure]) -> None:
    draw_curves([{"step": 1, "a": math.nan}], {"scores": {"score/relevance": {}}}, Path("c.png"))
    assert not any(panel.get_visible() for panel in drawn[0].axes)


def test_labels_of_steps_do_not_overlap(drawn: list[Figure]) -> None:
    kept = {i: (0.5 + 0.0001 * i, 30.0 - 0.01 * i) for i in range(1, 30)}
    draw_front(["a", "b"], kept, {0: (0.1, 60.0)}, Path("c.png"), ["max", "min"])
    (panel,) = drawn[0].axes
    boxes = [text.get_window_extent() for text in panel.texts]
    assert panel.texts[0].get_text() == "29"  # the newest one is always labelled
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("a ↑", "b ↓")


@pytest.mark.parametrize("logger", ["HistoryLogger", "CSVLogger"])
def test_any_folder_of_a_logger_is_drawn(logger: str, tmp_path: Path, drawn: list[Figure]) -> None:
    """A later test of a checkpoint replaces the value at its step."""
    if logger == "CSVLogger":
        rows = "epoch,step,loss,val_loss\n0,1,2.0,\n0,2,1.5,\n0,2,,1.0\n0,1,,3.0\n"
        (tmp_path / "metrics.csv").write_text(rows)
    else:
        given = [{"loss": 2.0}, {"loss": 1.5}, {"val_loss": 1.0}, {"val_loss": 3.0}]
        for row, step in zip(given, (1, 2, 2, 1), strict=True):
            JsonLog(tmp_path / "metrics.jsonl").append({"step": step, "epoch": 0, **row})
    (tmp_path / "summary.json").write_text('{"directions": {"val_loss": "min"}}')
    assert plot_run(tmp_path) == tmp_path / "curves.png"
    lines = {
        panel.get_title("left"): panel.lines[0].get_xydata().tolist() for panel in drawn[0].axes
    }
    assert lines == {"loss": [[1, 2], [2, 1.5]], "val loss ↓": [[1, 3], [2, 1]]}
    with pytest.raises(FileNotFoundError, match=r"No such file or folder: .*none"):
        plot_run(tmp_path / "none")


def test_a_figure_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "front.png", {1: (0.1, 0.9), 2: (0.2, 0.8)}
    draw_front(["a", "b"], kept, {}, path)
    assert imread(path).ndim == 3
    before = path.read_bytes()

    def full(figure: Figure, file: BinaryIO, **_: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        draw_front(["a", "b"], kept, {}, path)
    assert raised.value.filename == str(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
