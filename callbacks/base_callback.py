"""Base of all callbacks."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ctrlreward.callbacks.lightning_internals import log_at_global_step
from ctrlreward.callbacks.loggers.history import HistoryLoggerMixin
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    check_strategy,
    misconfigured,
    package_of,
)


class CallbackMixin(Callback):
    """Checks that the callbacks support the package and the strategy of the trainer.

    The trainer of a callback logs at `trainer.global_step`, the number of optimizer steps: a
    validation has one number in every log, file name and checkpoint. Rows of `trainer.validate` and
    `trainer.test` are appended to the file of a `HistoryLogger`.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the packages of trainer and callback, and the strategy."""
        super().setup(trainer, pl_module, stage)
        ours, theirs = package_of(self), package_of(trainer)
        if ours is not theirs:
            name = type(self).__name__
            raise theirs.misconfiguration(
                f"this {name} is a callback of {ours.name}, but the trainer is one of "
                f"{theirs.name}. Use `from {theirs.ours} import {name}`."
            )
        check_strategy(trainer)
        log_at_global_step(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, HistoryLoggerMixin):
                logger.replaces_rows = stage == "fit"

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Release the resources of the run."""
        super().teardown(trainer, pl_module, stage)
        self.release()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Release what the run has used; after an error Lightning calls no `teardown`.

        Adds a note to an error whose message does not say what to do.
        """
        super().on_exception(trainer, pl_module, exception)
        note = advice(trainer, exception)
        if note is not None and note not in getattr(exception, "__notes__", []):
            exception.add_note(note)
        self.release()

    def refuse(self, error: str) -> None:
        """Raise the error of `mismatch` or `unclear_input`, if any.

        Lightning calls `configure_model` after `setup`, so the second is for `on_fit_start`.
        """
        if error:
            raise misconfigured(self, f"{type(self).__name__}: {error}")

    def release(self) -> None:
        """End threads, free models and restore the module, after a run and after its error."""


def advice(trainer: Trainer, error: BaseException) -> str | None:
    """Return what to do about an error of a run whose message does not say it; None for others."""
    if type(error).__module__.startswith("wandb."):
        return (
            "Weights & Biases did not start a run: set WANDB_MODE=offline to write it to disk and "
            "upload it later (wandb sync), or log in (wandb login)"
        )
    path = Path(trainer.ckpt_path or "")
    if not path.is_file() or zipfile.is_zipfile(path):
        return None
    others = sorted(p.name for p in path.parent.glob("*.ckpt") if zipfile.is_zipfile(p))
    instead = f"one of {', '.join(others)}" if others else "another checkpoint"
    return (
        f"{path} is damaged or was cut off at {path.stat().st_size} bytes: resume from {instead} "
        "(ckpt_path), or start again without"
    )
