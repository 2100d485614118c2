"""Every logged number of a run as JSON lines that outlive crashes and resumes."""

from __future__ import annotations

import json
import math
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from ctrlreward.files import write_whole


class HistoryLogger(Logger):
    """Appends what is logged to `<folder>/metrics.jsonl`, one object with `step` a call.

    Lightning's CSV logger deletes the file of the run that it resumes; this one goes on with it:
    the first row of a run takes the place of all earlier rows of its step and later ones.

    Args:
        folder: Of the run; made when first written to.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.jsonl"
        self._started = False

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.parent.name

    @property
    def version(self) -> str:
        """There are no versions: a folder holds one run."""
        return ""

    @property
    def save_dir(self) -> str:
        """The folder."""
        return str(self.path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Appends one row, which is on the disk when this returns."""
        step = step or 0
        if not self._started:
            self._drop_from(step)
            self._started = True
        row = {"step": step, **{name: _finite(value) for name, value in metrics.items()}}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Nothing: the command line keeps the configuration beside this file."""

    def _drop_from(self, step: int) -> None:
        kept = [row for row in read_history(self.path) if row["step"] < step]
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in kept))


def read_history(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, in order; none where there is no file.

    A last line that a killed run left unfinished is left out.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def curve(rows: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was logged and is a number."""
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
