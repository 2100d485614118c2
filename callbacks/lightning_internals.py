"""All private names of Lightning that this project uses, behind public ones.

Checked with pytorch-lightning 2.6.6. tests/callbacks/test_lightning_internals.py fails if another
module uses a private name of Lightning, or if Lightning no longer has one of these:

- `ModelCheckpoint._save_checkpoint` and `_remove_checkpoint` write and delete every checkpoint, and
  have no public hook. Adapters are exported and removed with them.
- `ModelCheckpoint._save_last_checkpoint`: Lightning writes `last.ckpt` only if the set of best
  checkpoints changed. We write it at every validation.
- `ModelCheckpoint._should_skip_saving_checkpoint`, `_monitor_candidates`,
  `_get_metric_interpolated_filepath_name` and `_should_remove_checkpoint`: the steps around the
  choice of checkpoints, which Lightning makes in one private method.
- `ModelCheckpoint._last_global_step_saved` and `_last_checkpoint_saved`: the last file, which
  Lightning does not forget when the callback is used for another run.
- `Callback._generate_state_key`, which Lightning's documentation recommends.
- `Trainer._logger_connector`, its `log_metrics` and `_TrainingEpochLoop._batches_that_stepped`: the
  trainer logs under a number of batches, and has no option for another step.
- `WandbLogger._prefix` has no public name.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from ctrlreward.lightning_package import Callback, ModelCheckpoint, Trainer, WandbLogger


def state_key(callback: Callback, **identity: Any) -> str:
    """Return the key of a callback's state in a checkpoint, with the arguments that identify it."""
    return callback._generate_state_key(**identity)


def log_at_global_step(trainer: Trainer) -> None:
    """Make a trainer log at `trainer.global_step`; a second call changes nothing.

    Lightning logs at the number of batches before this one: 3 after the fourth optimizer step. A
    step that a module logs itself (`self.log("step", …)`) has priority.
    """
    connector = trainer._logger_connector
    connector.log_metrics = partial(log_metrics, connector)  # type: ignore[method-assign]


def log_as_before(trainer: Trainer) -> None:
    """Undo `log_at_global_step`; a second call changes nothing."""
    vars(trainer._logger_connector).pop("log_metrics", None)


def log_metrics(connector: Any, metrics: dict[str, Any], step: int | None = None) -> None:
    """Log in place of the `log_metrics` of a trainer's connector, at `trainer.global_step`."""
    trainer = connector.trainer
    loop = trainer.fit_loop.epoch_loop
    batches, loop._batches_that_stepped = loop._batches_that_stepped, trainer.global_step
    try:
        type(connector).log_metrics(connector, metrics, step)
    finally:
        loop._batches_that_stepped = batches


def wandb_key(logger: WandbLogger, key: str) -> str:
    """Return the key of a metric in Weights & Biases, which starts with the logger's prefix."""
    return f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}{key}" if logger._prefix else key


class CheckpointStepsMixin(ModelCheckpoint):
    """`ModelCheckpoint` with public names for saving, and hooks that run for every checkpoint."""

    def writing(self, trainer: Trainer) -> AbstractContextManager[None]:
        """Return the context in which a checkpoint is written or deleted."""
        return nullcontext()

    def skips_saving(self, trainer: Trainer) -> bool:
        """Return True under `fast_dev_run`, outside of fitting, and if this step is saved."""
        return self._should_skip_saving_checkpoint(trainer)

    def logged_metrics(self, trainer: Trainer) -> dict[str, torch.Tensor]:
        """Return a copy of the logged metrics with `epoch` and `step`, for file names."""
        return self._monitor_candidates(trainer)

    def free_path(
        self, metrics: dict[str, torch.Tensor], trainer: Trainer, replaced: str | None
    ) -> str:
        """Return a new checkpoint's path; it has a version if another file has its name."""
        return self._get_metric_interpolated_filepath_name(metrics, trainer, replaced)

    def may_remove(self, trainer: Trainer, path: str, saved: str) -> bool:
        """Return False for the file just saved, the one resumed from, and other folders."""
        return self._should_remove_checkpoint(trainer, path, saved)

    def save(self, trainer: Trainer, path: str) -> None:
        """Write a checkpoint and notify the loggers. Every rank must call this."""
        self._save_checkpoint(trainer, path)

    def forget_saved(self) -> None:
        """Forget the last file, so that another run saves the same step."""
        self._last_global_step_saved, self._last_checkpoint_saved = 0, ""

    def save_last_checkpoint(self, trainer: Trainer) -> None:
        """Write `last.ckpt` if `save_last` is set. Every rank must call this."""
        self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def remove(self, trainer: Trainer, path: str) -> None:
        """Delete a checkpoint."""
        self._remove_checkpoint(trainer, path)

    def before_saving(self, trainer: Trainer, path: str) -> None:
        """Run on every rank before a checkpoint is written."""

    def after_removal(self, trainer: Trainer, path: str) -> None:
        """Run on every rank after a checkpoint was deleted."""

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        self.before_saving(trainer, filepath)
        with self.writing(trainer):
            super()._save_checkpoint(trainer, filepath)

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        with self.writing(trainer):
            super()._remove_checkpoint(trainer, filepath)
        self.after_removal(trainer, filepath)
