"""Base of all callbacks."""

from __future__ import annotations

import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from ctrlreward.arguments import counted
from ctrlreward.callbacks.lightning_internals import log_as_before, log_at_global_step
from ctrlreward.callbacks.loggers.history import HistoryLoggerMixin
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    callbacks_of,
    check_strategy,
    misconfigured,
    package_of,
)


class CallbackMixin(Callback):
    """Callback that checks the package and the strategy of the trainer.

    A callback that is used for a second run starts again with the state before its first, unless
    the run resumes from a checkpoint, or the same trainer continues. During a run its trainer logs
    at `trainer.global_step`: a validation has one number in every log, file name and checkpoint.
    """

    _unused: dict[str, Any] | None = None  # the state before the first run
    _awaits_validation = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the packages of trainer and callback, and the strategy."""
        ours, theirs = package_of(self), package_of(trainer)
        if ours is not theirs:
            name = type(self).__name__
            raise misconfigured(
                trainer,
                f"this {name} is a callback of {ours.name}, but the trainer is one of "
                f"{theirs.name}. Use `from {theirs.ours} import {name}`.",
            )
        check_strategy(trainer)
        if stage == "fit" and trainer.global_step == 0:  # a checkpoint is loaded after this hook
            if self._unused is None:
                self._unused = deepcopy(self.state_dict())
            else:
                self.reset(deepcopy(self._unused))
        super().setup(trainer, pl_module, stage)
        log_at_global_step(trainer)
        for logger in trainer.loggers:
            if isinstance(logger, HistoryLoggerMixin):
                logger.replaces_rows = stage == "fit"

    def reset(self, unused: dict[str, Any]) -> None:
        """Return to the state before the first run."""
        self.load_state_dict(unused)

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Raise a TypeError: Lightning does not call this, but a `transformers.Trainer` does."""
        name = type(self).__name__
        raise TypeError(
            f"this {name} is a callback of Lightning; ctrlreward.huggingface has the callbacks for "
            "Trainer and TRL"
        )

    on_init_end = on_train_begin

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Release the resources of the run, and warn of one that had no validation."""
        super().teardown(trainer, pl_module, stage)
        if self._awaits_validation and trainer.global_step and trainer.ckpt_path is None:
            for callback in callbacks_of(trainer, CallbackMixin):
                callback._awaits_validation = False  # one of them warns
            rank_zero_warn(
                "training ended before the first validation: nothing was scored or decided in "
                f"{counted(trainer.global_step, 'step')}. val_check_interval or "
                "check_val_every_n_epoch is longer than the run, or the data are shorter than they "
                "say. Validate more often."
            )
        self._awaits_validation = False
        log_as_before(trainer)
        self.release()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Release the resources of the run; after an error Lightning does not call `teardown`.

        Adds a note to an error whose message does not say what to do.
        """
        super().on_exception(trainer, pl_module, exception)
        note = advice(trainer, exception)
        if note is not None and note not in getattr(exception, "__notes__", []):
            exception.add_note(note)
        log_as_before(trainer)
        self.release()

    def needs_validation(self, trainer: Trainer, stage: str) -> None:
        """Raise if a run of this callback has no validation; it warns later if none took place."""
        self._awaits_validation = stage == "fit"
        if stage == "fit" and not trainer.enable_validation:
            raise misconfigured(
                trainer,
                f"{type(self).__name__} acts at validation, but this run has no validation. Define "
                "validation_step, pass val_dataloaders (one item is enough) to the trainer, and "
                "keep limit_val_batches above 0.",
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the run has a validation."""
        super().on_validation_start(trainer, pl_module)
        if not trainer.sanity_checking:
            self._awaits_validation = False

    def refuse(self, error: str | None) -> None:
        """Raise an error of `setup`, or in `on_fit_start` of `unclear_input`, if any."""
        if error:
            raise misconfigured(self, f"{type(self).__name__}: {error}")

    def release(self) -> None:
        """End threads, free models and restore the module, after a run and after its error."""


def advice(trainer: Trainer, error: BaseException) -> str | None:
    """Return advice for an error of a run whose message has none; None for other errors."""
    if type(error).__module__.startswith("wandb."):
        return (
            "Weights & Biases did not start a run. Set WANDB_MODE=offline to write it to disk and "
            "upload it later (wandb sync), or log in (wandb login)."
        )
    path = Path(trainer.ckpt_path or "")
    if not path.is_file() or zipfile.is_zipfile(path):
        return None
    others = sorted(p.name for p in path.parent.glob("*.ckpt") if zipfile.is_zipfile(p))
    instead = f"one of {', '.join(others)}" if others else "another checkpoint"
    return (
        f"{path} is damaged or was cut off at {path.stat().st_size} bytes. Resume from {instead} "
        "(ckpt_path), or start again without it."
    )
