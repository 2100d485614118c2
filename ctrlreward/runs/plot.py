"""Curves of any run, from the folder of its logger."""

from __future__ import annotations

from pathlib import Path

from ctrlreward.files import read_json
from ctrlreward.plots import draw_curves
from ctrlreward.runs.logs import read_log


def plot_run(folder: str | Path, path: str | Path | None = None) -> Path:
    """Draw the curves of any run, from the folder of its logger.

    Args:
        folder: Folder with the log of any trainer that `ctrlreward select` reads, such as the
            `metrics.jsonl` of a `HistoryLogger` or the `metrics.csv` of Lightning's `CSVLogger`. A
            `summary.json` of `BeforeAfter` in it adds their values.
        path: The PNG. Defaults to `curves.png` in the folder.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: It has no log, several, or a damaged one.
        ImportError: matplotlib is not installed.
    """
    folder = Path(folder)
    summary = folder / "summary.json"
    report = read_json(summary) if summary.is_file() else {}
    path = folder / "curves.png" if path is None else Path(path)
    history = [{"step": step, **metrics} for step, metrics in read_log(folder).rows]
    draw_curves(history, report, path)
    return path
