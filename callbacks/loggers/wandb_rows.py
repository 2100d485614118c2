"""Tables, curves and alerts in the Weights & Biases runs of a trainer's loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ctrlreward.callbacks.lightning_internals import wandb_key
from ctrlreward.extras import import_extra
from ctrlreward.lightning_package import Trainer, WandbLogger, is_instance
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.records import sample_table


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
    """Log `sample_table(…)` and further `steps` at `trainer.global_step`; call it on rank 0."""
    for logger in wandb_loggers(trainer):
        wandb = import_extra("wandb", "WandbLogger")
        columns, data = sample_table(samples, scores, rows, reasons)
        row = {key: wandb.Table(columns=columns, data=data), **(steps or {})}
        logger.log_metrics(row, step=trainer.global_step)


def define_scores(trainer: Trainer, specs: Mapping[str, ScoreSpec], step_key: str) -> None:
    """Draw logged scores over the step of their texts, and summarise each by its best value.

    Rows without that step get its last value (`step_sync`), so it has to be logged before them.
    """
    for logger in wandb_loggers(trainer) if trainer.is_global_zero else ():
        define, step = logger.experiment.define_metric, wandb_key(logger, step_key)
        define(step, hidden=True)
        for key, spec in specs.items():
            summary = f"{spec.mode},last"
            define(wandb_key(logger, key), step_metric=step, step_sync=True, summary=summary)


def send_alert(trainer: Trainer, title: str, text: str) -> None:
    """Send a WARN, with a title of under 64 characters, to each run, from rank 0."""
    for logger in wandb_loggers(trainer) if trainer.is_global_zero else ():
        logger.experiment.alert(title, text, level="WARN")
