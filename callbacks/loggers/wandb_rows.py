"""Tables, curves and alerts in the Weights & Biases runs of a trainer's loggers.

A row that ends advances the step of the run, and W&B drops what is then logged with a lower one:
`wandb.log(..., step=trainer.global_step)` of a user, say. So nothing here ends a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ctrlreward.callbacks.lightning_internals import wandb_key
from ctrlreward.extras import import_extra
from ctrlreward.lightning_package import LightningModule, Trainer, WandbLogger, is_instance
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import sample_table

# Options by which all ranks log the same value of a validation.
ALIKE: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True, "batch_size": 1}


def wandb_loggers(trainer: Trainer) -> list[WandbLogger]:
    """Return the trainer's Weights & Biases loggers."""
    loggers = [one for one in trainer.loggers if is_instance(one, "loggers.WandbLogger")]
    return cast("list[WandbLogger]", loggers)


def log_sample_table(
    trainer: Trainer,
    key: str,
    samples: Samples,
    scores: Mapping[str, Scores],
    rows: int,
    steps: Mapping[str, int] | None = None,
    reasons: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add `sample_table(…)` and further `steps` to the next row of each run; call it on rank 0."""
    for _ in wandb_loggers(trainer)[:1]:
        wandb = import_extra("wandb", "WandbLogger")
        columns, data = sample_table(samples, scores, rows, reasons)
        add_to_next_row(trainer, {key: wandb.Table(columns=columns, data=data), **(steps or {})})


def add_to_next_row(trainer: Trainer, values: Mapping[str, Any]) -> None:
    """Add values to the row that the trainer or the user logs next; the run's end logs it, too."""
    for logger in wandb_loggers(trainer) if trainer.is_global_zero else ():
        row = {wandb_key(logger, key): value for key, value in values.items()}
        logger.experiment.log(row, commit=False)


def log_at_validation(
    trainer: Trainer, module: LightningModule, values: Mapping[str, float]
) -> None:
    """Log values in `on_validation_epoch_end`, the same on all ranks.

    They go into the trainer's row of the validation, unless W&B has as many rows as steps: this row
    may be there only for them, and is one too many for a user who logs at each step.
    """
    runs = [one.experiment for one in wandb_loggers(trainer)] if trainer.is_global_zero else []
    beside = trainer.state.fn == "fit" and any(run.step >= trainer.global_step for run in runs)
    module.log_dict(dict(values), logger=not beside, **ALIKE)
    if beside:
        log_late(trainer, values)


def log_late(trainer: Trainer, values: Mapping[str, float]) -> None:
    """Log values beside the trainer's row of this step: as a row, in W&B within the next one."""
    for logger in trainer.loggers:
        if not is_instance(logger, "loggers.WandbLogger"):
            logger.log_metrics(dict(values), step=trainer.global_step)
    add_to_next_row(trainer, values)


def define_curves(trainer: Trainer, summaries: Mapping[str, str | None], step_key: str) -> None:
    """Draw logged keys over a step of ours, and summarise each: `"max,last"`.

    Rows without that step get its last value (`step_sync`), so it has to be logged before them.
    """
    for logger in wandb_loggers(trainer) if trainer.is_global_zero else ():
        define, step = logger.experiment.define_metric, wandb_key(logger, step_key)
        define(step, hidden=True)
        for key, summary in summaries.items():
            define(wandb_key(logger, key), step_metric=step, step_sync=True, summary=summary)


def send_alert(trainer: Trainer, title: str, text: str) -> None:
    """Send a WARN, with a title of under 64 characters, to each run, from rank 0."""
    for logger in wandb_loggers(trainer) if trainer.is_global_zero else ():
        logger.experiment.alert(title, text, level="WARN")
