"""Tables, curves and alerts in the Weights & Biases runs of a trainer's loggers.

A row that ends advances the step of the run, and W&B drops what is then logged with a lower one:
`wandb.log(..., step=trainer.global_step)` of a user, say. So nothing here ends a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ctrlreward.extras import import_extra
from ctrlreward.lightning_package import LightningModule, Trainer, WandbLogger, is_instance
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import sample_table

# Options by which all ranks log the same value of a validation.
ALIKE: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True, "batch_size": 1}


def runs_of(trainer: Trainer) -> list[WandbLogger]:
    """Return the trainer's Weights & Biases loggers on rank 0, which has their runs."""
    loggers: list[Any] = trainer.loggers if trainer.is_global_zero else []
    return [each for each in loggers if is_instance(each, "WandbLogger")]


def key_of(logger: WandbLogger, key: str) -> str:
    """Return the key of a metric in W&B, which starts with the logger's prefix."""
    return f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}{key}" if logger._prefix else key


def add_to_next_row(logger: WandbLogger, values: Mapping[str, Any]) -> None:
    """Add values to the row that the trainer or the user logs next; the run's end also logs it."""
    row = {key_of(logger, key): value for key, value in values.items()}
    logger.experiment.log(row, commit=False)  # nothing, except on rank 0


def log_sample_table(
    trainer: Trainer,
    key: str,
    samples: Samples,
    scores: Mapping[str, Scores],
    reasons: Mapping[str, Sequence[str]],
    steps: Mapping[str, int],
) -> None:
    """Add the table of some samples, evenly spaced, and further `steps` to the next row."""
    for logger in runs_of(trainer):
        wandb = import_extra("wandb", "WandbLogger")
        columns, data = sample_table(samples, scores, reasons)
        add_to_next_row(logger, {key: wandb.Table(columns=columns, data=data), **steps})


def log_at_validation(
    trainer: Trainer, module: LightningModule, values: Mapping[str, float]
) -> None:
    """Log values in `on_validation_epoch_end`, the same on all ranks.

    They go into the trainer's row of the validation, unless W&B has as many rows as steps: this row
    may be there only for them, and is one too many for a user who logs at each step. What the first
    validation of a fit decides stays, as Lightning takes a key with one setting only: a resumed run
    of W&B may begin with fewer rows than steps, and catch up.
    """
    known = [key for key in values if key in trainer.callback_metrics]
    steps = [logger.experiment.step for logger in runs_of(trainer)]
    beside = any(step >= trainer.global_step for step in steps)
    if known and steps:
        beside = known[0] not in trainer.logged_metrics
    beside = beside and trainer.state.fn == "fit"
    module.log_dict(dict(values), logger=not beside, **ALIKE)
    if beside:
        log_late(trainer, values, {})


def log_late(trainer: Trainer, values: Mapping[str, float], steps: Mapping[str, int]) -> None:
    """Log values beside the trainer's row of this step: as a row, in W&B within the next one.

    W&B also gets `steps`, which its curves are drawn over.
    """
    for logger in trainer.loggers:
        if is_instance(logger, "WandbLogger"):
            add_to_next_row(cast(WandbLogger, logger), {**values, **steps})
        else:
            logger.log_metrics(dict(values), step=trainer.global_step)
            logger.save()  # before a checkpoint has what is in the row


def define_curves(trainer: Trainer, summaries: Mapping[str, str | None], step_key: str) -> None:
    """Draw logged keys over a step of ours, and summarise each: `"max,last"`.

    Rows without that step get its last value (`step_sync`), so it has to be logged before them.
    """
    for logger in runs_of(trainer):
        define, step = logger.experiment.define_metric, key_of(logger, step_key)
        define(step, hidden=True)
        for key, summary in summaries.items():
            define(key_of(logger, key), step_metric=step, step_sync=True, summary=summary)
