from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

import pytest
from matplotlib.figure import Figure

from ctrlreward.plots import draw_curves, draw_front
from ctrlreward.runs import plot_run

REPORT = {
    "before": {"relevance": 0.5, "fail_rate": 0.0, "generations": 8},
    "after": {"relevance": None, "fail_rate": 0.0, "generations": 8},
    "selection": {"monitor": "score/relevance", "step": 4, "constraints": {"kl": [None, 0.5]}},
    "directions": {"score/relevance": "max", "kl": "min"},
}
ROWS = [{"step": s, "score/relevance": 0.5 + 0.01 * s, "kl": 0.02 * s} for s in (2, 4, 6)]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were saved."""
    monkeypatch.chdir(tmp_path)
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


def lines_of(figure: Figure) -> list[dict[str, list]]:
    return [{a.get_label(): a.get_xydata().tolist() for a in p.lines} for p in figure.axes]


def test_a_score_shows_what_was_decided(drawn: list[Figure]) -> None:
    draw_curves(ROWS, REPORT, Path("c.png"))
    relevance, kl = lines_of(drawn[0])
    assert [panel.get_title("left") for panel in drawn[0].axes] == ["relevance ↑", "kl ↓"]
    assert relevance["logged"] == [[2, 0.52], [4, 0.54], [6, 0.56]]
    assert relevance["before"] == [[0, 0.5]]
    assert relevance["kept, step 4"][0][0] == 4
    assert "after" not in relevance  # it has no score
    assert [y for _, y in kl["constraint"]] == [0.5, 0.5]


def test_the_folder_of_a_logger_is_drawn(tmp_path: Path, drawn: list[Figure]) -> None:
    """A later test of a checkpoint replaces the value at its step."""
    rows = "epoch,step,loss,val_loss\n0,1,2.0,\n0,2,1.5,\n0,2,,1.0\n0,1,,3.0\n"
    (tmp_path / "metrics.csv").write_text(rows)
    (tmp_path / "summary.json").write_text('{"directions": {"val_loss": "min"}}')
    assert plot_run(tmp_path) == tmp_path / "curves.png"
    assert [panel.get_title("left") for panel in drawn[0].axes] == ["loss", "val loss ↓"]
    loss, val_loss = (lines["logged"] for lines in lines_of(drawn[0]))
    assert (loss, val_loss) == ([[1, 2], [2, 1.5]], [[1, 3], [2, 1]])


def test_a_front_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "front.png", {1: (0.1, 0.9, 3.0), 2: (0.2, 0.8, 4.0)}
    metrics = {"a": "max", "b": "min", "c": "max"}
    draw_front(metrics, kept, {0: (0.1, 0.9, 1.0)}, path)
    before = path.read_bytes()

    def full(figure: Figure, file: BinaryIO, **_: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        draw_front(metrics, kept, {}, path)
    assert raised.value.filename == str(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
