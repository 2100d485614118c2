"""Base of all callbacks, for both packages of Lightning."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from ctrlreward.arguments import counted
from ctrlreward.callbacks.history import HistoryLoggerMixin
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    callbacks_of,
    check_strategy,
    misconfigured,
    package_of,
)

# Attribute of a module: the step of the weights that it got from a checkpoint and still has.
LOADED_STEP = "_ctrlreward_loaded_step"


class CallbackMixin(Callback):
    """Callback that checks the package and the strategy of the trainer.

    A callback that is used for a second run starts again with the state before its first, unless
    the run resumes from a checkpoint, or the same trainer continues.
    """

    identity: Mapping[str, Any] = {}  # arguments in the key of the state in a checkpoint
    _unused: dict[str, Any] | None = None  # the state before the first run
    _awaits_validation = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
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
        for logger in trainer.loggers:
            if isinstance(logger, HistoryLoggerMixin):
                logger.trainer, logger.replaces_rows = trainer, stage == "fit"

    @property
    def state_key(self) -> str:
        """Key of this callback's state in a checkpoint."""
        return self._generate_state_key(**self.identity)

    def reset(self, unused: dict[str, Any]) -> None:
        """Return to the state before the first run."""
        self.load_state_dict(unused)

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Raise a TypeError: Lightning does not call this, but a `transformers.Trainer` does."""
        raise TypeError(
            f"{type(self).__name__} is a callback of Lightning. Use the one of "
            "ctrlreward.huggingface for Trainer and TRL."
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
                f"{counted(trainer.global_step, 'step')}. Validate more often."
            )
        self._awaits_validation = False
        self.release()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Release the resources of the run; after an error Lightning does not call `teardown`."""
        super().on_exception(trainer, pl_module, exception)
        note = about_damage(trainer)
        if note and note not in getattr(exception, "__notes__", []):
            exception.add_note(note)
        self.release()

    def needs_validation(self, trainer: Trainer, stage: str) -> None:
        """Raise if a run of this callback has no validation; it warns later if none took place."""
        self._awaits_validation = stage == "fit"
        if stage == "fit" and not trainer.enable_validation:
            raise misconfigured(
                trainer,
                f"{type(self).__name__} acts at validation, but this run has no validation. Define "
                "validation_step and pass val_dataloaders; one item is enough.",
            )

    def refuse(self, error: str | None) -> None:
        """Raise an error of the configuration, if any."""
        if error:
            raise misconfigured(self, f"{type(self).__name__}: {error}")

    def release(self) -> None:
        """Free models and restore the module, after a run and after its error."""


def log_folder(trainer: Trainer) -> Path:
    """Return the folder of the log that `ctrlreward select` reads; every rank must call this.

    A `HistoryLogger` comes before the trainer's other loggers, in any order: it is read first.
    """
    own = [each.save_dir for each in trainer.loggers if isinstance(each, HistoryLoggerMixin)]
    # The trainer broadcasts its `log_dir`.
    return Path(own[0] if own else trainer.log_dir or trainer.default_root_dir)


def about_damage(trainer: Trainer) -> str:
    """Return that the checkpoint to resume from is damaged, and which others are there, or ""."""
    path = Path(trainer.ckpt_path or "")
    if not path.is_file() or zipfile.is_zipfile(path):
        return ""
    others = sorted(p.name for p in path.parent.glob("*.ckpt") if zipfile.is_zipfile(p))
    return (
        f"{path} is damaged or was cut off at {path.stat().st_size} bytes. Resume from "
        f"{', '.join(others) or 'another checkpoint'}, or start again."
    )
