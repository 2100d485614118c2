"""Logger of all metrics of a run as JSON lines, which survives crashes and resumes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_only

from ctrlreward.files import JsonLog, finite_or_none
from ctrlreward.held_out import SCORED_STEP
from ctrlreward.lightning_package import Logger


class HistoryLoggerMixin(Logger):
    """Lightning logger that appends metrics to `<folder>/metrics.jsonl`.

    Each call writes one JSON object with `step` and the logged values, null for NaN and infinity;
    `JsonLog(logger.path).read()` returns them.

    In a fit with a callback of this package, or of `ctrlreward train`, a resumed run continues the
    file: the first row that it logs replaces all earlier rows of the same and later steps. With
    such a callback the step of the trainer's own rows is `trainer.global_step`, or of the weights
    that a `GenerationScorer` has scored; Lightning counts the batches before this one.

    Args:
        folder: Folder of the run; created by the first row.

    Examples:
        >>> from ctrlreward.callbacks import HistoryLogger
        >>> logger = HistoryLogger("runs/mine")  # for Trainer(logger=logger)
        >>> logger.log_metrics({"score/content": 0.6}, step=10)
        >>> print(logger.path.read_text())
        {"step": 10, "score/content": 0.6}
    """

    # Lightning joins folder, name and version to a path for checkpoints; a folder has one run.
    name = version = ""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.jsonl"
        self._rows = JsonLog(self.path)
        self.replaces_rows = False  # by the next one
        self.trainer: Any = None  # that it follows

    @property
    def save_dir(self) -> str:
        """The folder, where Lightning puts checkpoints and callbacks their files."""
        return str(self.path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row; it is on disk when this returns."""
        row = {k: finite_or_none(v) for k, v in metrics.items() if not k.endswith(SCORED_STEP)}
        if self.trainer and "epoch" in metrics:  # the trainer chose the step
            scored = [value for key, value in metrics.items() if key not in row]
            step = int(scored[0] if scored else self.trainer.global_step)
        step = step or 0
        if self.replaces_rows:
            self._rows.replace(row for row in self._rows.read() if row["step"] < step)
            self.replaces_rows = False
        self._rows.append({"step": step, **row})

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Do nothing: `ctrlreward train` saves the configuration in the same folder."""

    def finalize(self, status: str) -> None:
        """Follow no trainer any more."""
        self.trainer = None
