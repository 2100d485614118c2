"""Weights & Biases run of a training: continued when it resumes, with its decisions and adapter."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lightning_utilities.core.rank_zero import rank_zero_warn

from ctrlreward.arguments import checked_keywords
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.checkpoint import RewardCheckpointMixin
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.guard import ProxyGuardMixin
from ctrlreward.callbacks.lightning_internals import prepare_wandb_run
from ctrlreward.callbacks.loggers.wandb_rows import wandb_loggers
from ctrlreward.callbacks.monitoring import is_fitting, resolutions
from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.callbacks.saving import selecting_checkpoint
from ctrlreward.callbacks.stopping import RewardEarlyStoppingMixin
from ctrlreward.extras import import_extra
from ctrlreward.lightning_package import (
    LightningModule,
    Trainer,
    WandbLogger,
    callbacks_of,
    is_instance,
    misconfigured,
)
from ctrlreward.samples import shortened

if TYPE_CHECKING:  # users pass the logger of their package
    from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger

    AnyWandbLogger: TypeAlias = WandbLogger | LightningWandbLogger
else:
    AnyWandbLogger = object


@checked_keywords(project="logger=WandbLogger(project=...)", name="logger=WandbLogger(name=...)")
class WandbReportMixin(CallbackMixin):
    """Reports decisions and results of a training to its Weights & Biases run.

    Writes to the run's summary, at each validation and at the end:

    - `best/<score>`: best mean of each score of a `GenerationScorer`, with its `step`;
    - `selected/step`, `selected/<monitor>`, `selected/constraints`, `selected/constraints_met`: the
      choice of the first `RewardCheckpoint` or `ParetoCheckpoint`;
    - `stopped_by`, `stopped_because`: the cause, if `RewardEarlyStopping` or `ProxyGuard` stopped
      training; `guard/alarm_step` if there was an alarm;
    - `report`: the content of the `summary.json` of `BeforeAfter`.

    When training ends, the adapter of the selected checkpoint becomes the artifact
    `adapter-<run id>` of type `model`, with the aliases `best` and `step-<step>`, once.

    Pass the `WandbLogger` to this callback instead of the trainer: training that resumes from a
    checkpoint (`ckpt_path`) then continues the run of that checkpoint, and other training starts a
    new one. An id of the logger has priority. An offline run prints the command that uploads it.
    `fast_dev_run` does not start a run.

    Args:
        logger: A `WandbLogger` that the trainer does not have. None to use the trainer's, whose
            run is new even if training resumes, unless it has an `id`.
        log_adapter: Log the adapter as an artifact.

    Attributes:
        run_id: Id of the run, "" before training.

    Raises:
        MisconfigurationException: In `setup`: this callback and the trainer both have a
            `WandbLogger`, or neither.

    Examples:
        >>> from pytorch_lightning.loggers import WandbLogger
        >>> from ctrlreward.callbacks import WandbReport
        >>> report = WandbReport(WandbLogger(project="quality", offline=True))
        >>> report.run_id  # for Trainer(callbacks=[report])
        ''
    """

    def __init__(self, logger: AnyWandbLogger | None = None, log_adapter: bool = True) -> None:
        super().__init__()
        if logger is not None and not is_instance(logger, "loggers.WandbLogger"):
            raise TypeError(f"logger must be a WandbLogger, got {shortened(logger)}")
        self.logger = cast("WandbLogger | None", logger)
        self.log_adapter = log_adapter
        self.run_id = ""
        self.best: dict[str, tuple[float, int]] = {}
        self._wandb_run: Any = None  # on rank 0, from the start of training
        self._rows = 0
        self._logged_adapter = ""

    def state_dict(self) -> dict[str, Any]:
        """Return id and number of rows of the run, and the best scores with their steps."""
        rows = self._rows if self._wandb_run is None else self._wandb_run.step
        best = {key: [value, step] for key, (value, step) in self.best.items()}
        return {"run_id": self.run_id, "rows": rows, "best": best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state."""
        self.run_id, self._rows = state_dict["run_id"], state_dict["rows"]
        self.best = {key: (value, step) for key, (value, step) in state_dict["best"].items()}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that there is one Weights & Biases logger to report to."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        others = [logger for logger in wandb_loggers(trainer) if logger is not self.logger]
        error = ""
        if self.logger is not None and others:
            error = (
                "WandbReport and the trainer have a WandbLogger each, for two runs of Weights & "
                "Biases. Pass a WandbLogger to WandbReport alone."
            )
        elif self.logger is None and not others:
            error = (
                "neither WandbReport nor the trainer has a WandbLogger. Use "
                "WandbReport(WandbLogger(project=...))."
            )
        if error:
            raise misconfigured(trainer, error)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start or continue the run, now that the checkpoint to resume from has been read."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.logger is not None and self.logger not in trainer.loggers:
            prepare_wandb_run(self.logger, self.run_id)
            trainer.loggers = [*trainer.loggers, self.logger]
        if not trainer.is_global_zero:
            return
        logger = self.logger or wandb_loggers(trainer)[0]
        Path(logger.save_dir or ".").mkdir(parents=True, exist_ok=True)  # else wandb warns
        run = logger.experiment
        if self.logger is None and self.run_id not in ("", run.id):
            rank_zero_warn(
                f"the checkpoint belongs to the Weights & Biases run {self.run_id}, but this "
                f"training logs to the run {run.id}. To continue the former, pass the WandbLogger "
                f"to WandbReport instead of the trainer, or use WandbLogger(id={self.run_id!r})."
            )
        if run.offline and run.id == self.run_id and run.step < self._rows:
            run.log({}, step=self._rows)  # number the rows from here; online, the server does it
        self.run_id, self._wandb_run = run.id, run
        # As Lightning does, but not for a run that was started without it, such as in a sweep.
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the best scores, and the summary up to the decisions of the last validation."""
        if self._wandb_run is None or not is_fitting(trainer):
            return
        for scorer in callbacks_of(trainer, GenerationScorerMixin):
            for key, spec in scorer.specs.items() if scorer.has_new_scores else ():
                value = trainer.callback_metrics[key].item()
                sign = 1.0 if spec.higher_is_better else -1.0
                best, _ = self.best.get(key, (-sign * math.inf, -1))
                if sign * value > sign * best:  # never with NaN
                    self.best[key] = value, scorer.last_scored_step
        self._write_summary(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the last decisions into the summary."""
        self._write_summary(trainer)
        super().on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the summary and log the adapter, after all other callbacks have finished."""
        run = self._wandb_run
        if stage == "fit" and run is not None:
            self._write_summary(trainer)
            path = Path(trainer.default_root_dir) / "summary.json"
            if callbacks_of(trainer, BeforeAfterMixin) and path.is_file():
                # Only now: before, the file is of an earlier run.
                run.summary.update({"report": json.loads(path.read_text(encoding="utf-8"))})
            if self.log_adapter:
                self._log_adapter(trainer, run)
            if self.logger is not None and run.offline:
                folders = Path(run.dir).parents[1] / f"offline-run-*-{run.id}*"
                print(f"Weights & Biases: wandb sync {os.path.relpath(folders)}")
        super().teardown(trainer, pl_module, stage)

    def _write_summary(self, trainer: Trainer) -> None:
        if self._wandb_run is None:
            return
        best = {f"best/{k}": {"value": value, "step": s} for k, (value, s) in self.best.items()}
        summary = {**best, **_selected(trainer), **_stopped(trainer)}
        found = resolutions(trainer).items()
        summary["resolution"] = {key: resolution._asdict() for key, resolution in found}
        self._wandb_run.summary.update(summary)

    def _log_adapter(self, trainer: Trainer, run: Any) -> None:
        """Log the adapter of the selected checkpoint, if this process has not logged the same."""
        checkpoint = selecting_checkpoint(trainer)
        if checkpoint is None or not checkpoint.best_adapter_path:
            return
        wandb = import_extra("wandb", "WandbReport")
        folder = Path(checkpoint.best_adapter_path)
        metadata = _selected(trainer)
        config = folder / "adapter_config.json"  # of peft; other adapters are logged without it
        if config.is_file():
            adapter = json.loads(config.read_text("utf-8"))
            metadata["base_model"] = adapter.get("base_model_name_or_path")
        name = re.sub(r"[^\w.-]", "-", f"adapter-{run.id}", flags=re.ASCII)  # others are refused
        artifact = wandb.Artifact(name, type="model", metadata=metadata)
        artifact.add_dir(str(folder))
        if artifact.digest != self._logged_adapter:
            run.log_artifact(artifact, aliases=["best", f"step-{checkpoint.selected_step}"])
            self._logged_adapter = artifact.digest


def _selected(trainer: Trainer) -> dict[str, Any]:
    """Return step and score of the selected checkpoint, and its constraints."""
    checkpoint = selecting_checkpoint(trainer)
    if checkpoint is None:
        return {}
    score = checkpoint.best_model_score
    selected: dict[str, Any] = {
        "selected/step": checkpoint.selected_step,
        f"selected/{checkpoint.monitor}": None if score is None else score.item(),
    }
    if isinstance(checkpoint, RewardCheckpointMixin):
        selected["selected/constraints"] = {k: list(b) for k, b in checkpoint.constraints.items()}
        selected["selected/constraints_met"] = checkpoint.selected_step is not None
        selected["selected/reason"] = checkpoint.reason
    return selected


def _stopped(trainer: Trainer) -> dict[str, Any]:
    """Return why training was stopped early, and the first alarm of each `ProxyGuard`."""
    stopped: dict[str, Any] = {}
    for guard in callbacks_of(trainer, ProxyGuardMixin):
        if guard.alarm_step >= 0:
            stopped[f"{guard.name}/alarm_step"] = guard.alarm_step
        if guard.stop and guard.alarm:
            stopped |= {"stopped_by": guard.name, "stopped_because": "possible reward hacking"}
    for stopper in callbacks_of(trainer, RewardEarlyStoppingMixin):
        if stopper.stopped_by:
            reason = stopper.stopping_reason_message
            stopped |= {"stopped_by": stopper.stopped_by, "stopped_because": reason}
    return stopped
