"""Summary and figure of a run, for any trainer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrlreward.arguments import sign_of
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.loggers.history import HistoryLoggerMixin
from ctrlreward.callbacks.monitoring import is_fitting, read_metrics
from ctrlreward.callbacks.report import BeforeAfterMixin, run_facts, write_report
from ctrlreward.files import JsonLog, finite_or_none
from ctrlreward.lightning_package import LightningModule, Trainer, misconfigured
from ctrlreward.plots.curves import Rows, curve


class RunReportMixin(CallbackMixin):
    """Writes `summary.json` and `curves.png` of a run when it ends, also by an error.

    For any module and logger, without further texts; `BeforeAfter` writes a larger report. The
    figure has the scores of each `GenerationScorer`, the keys that checkpoint and early stopping
    callbacks monitor, the kept step and the constraints of `RewardCheckpoint`. A resumed run
    continues it. The figure needs `pip install 'ctrlreward[plots]'`.

    Keys of `summary.json`:
    - `scores`: logged key → its `first`, `last` and `best` value at validation, and `best_step`;
    - `steps`, `stopped_by`, `best_checkpoint`, `constraints_met`, `selection`, `directions`: as in
      `BeforeAfter`;
    - `seconds`: `total`.

    Args:
        folder: Folder of both files. Defaults to the logger's, or to the trainer's
            `default_root_dir`.

    Attributes:
        rows: Metrics of each validation so far, with `step`.

    Raises:
        MisconfigurationException: In `setup`: the trainer has a `BeforeAfter`, which writes the
            same files.

    Examples:
        >>> import json
        >>> from pytorch_lightning import Trainer
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> from ctrlreward.callbacks import RewardCheckpoint, RunReport
        >>> class Module(BoringModel):
        ...     def on_validation_epoch_end(self):
        ...         self.log("score/quality", [0.5, 0.75, 0.625][self.current_epoch])
        >>> callbacks = [RewardCheckpoint("score/quality", "max"), RunReport("runs/mine")]
        >>> Trainer(max_epochs=3, callbacks=callbacks).fit(Module())
        >>> json.load(open("runs/mine/summary.json"))["scores"]
        {'score/quality': {'first': 0.5, 'last': 0.625, 'best': 0.75, 'best_step': 128}}
    """

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self._to: Path | None = None  # until setup has passed
        self._started, self._before = time.perf_counter(), 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics and the seconds so far."""
        return {"rows": list(self.rows), "seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both."""
        self.rows, self._before = list(state_dict["rows"]), state_dict["seconds"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the folder."""
        super().setup(trainer, pl_module, stage)
        if any(isinstance(c, BeforeAfterMixin) for c in trainer.callbacks):  # type: ignore[attr-defined]
            raise misconfigured(
                trainer, "BeforeAfter writes summary.json and curves.png: leave RunReport out"
            )
        self._to = Path(self.folder or trainer.log_dir or trainer.default_root_dir)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the new metrics."""
        if is_fitting(trainer):
            metrics, stale, _ = read_metrics(trainer)
            new = {k: finite_or_none(value) for k, value in metrics.items() if k not in stale}
            self.rows.append({"step": trainer.global_step, **new})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write both files."""
        assert self._to is not None
        self._write(trainer, self._to)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write both files, unless the run was refused before it began."""
        if is_fitting(trainer) and self._to is not None:
            self._write(trainer, self._to, type(exception).__name__)

    def _seconds(self) -> float:
        return self._before + time.perf_counter() - self._started

    def _write(self, trainer: Trainer, folder: Path, error: str = "") -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        facts = run_facts(trainer)
        if error:
            facts["stopped_by"] = error
        scores = {key: _course(self.rows, key, mode) for key, mode in facts["directions"].items()}
        logged = [log for log in trainer.loggers if isinstance(log, HistoryLoggerMixin)]
        history = JsonLog(logged[0].path).read() if logged else self.rows
        summary = {"scores": scores, **facts, "seconds": {"total": self._seconds()}}
        write_report(folder, summary, history)


def _course(rows: Rows, key: str, mode: str) -> Mapping[str, float | None]:
    """Return first, last and best value of a key, None without a validation that logged it."""
    steps, values = curve(rows, key)
    if not values:
        return dict.fromkeys(("first", "last", "best", "best_step"))
    best = max(range(len(values)), key=lambda i: sign_of(mode) * values[i])
    return {
        "first": values[0],
        "last": values[-1],
        "best": values[best],
        "best_step": steps[best],
    }
