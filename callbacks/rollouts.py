"""What a policy wrote in training, with its rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException

from ctrlreward.callbacks.records import log_table, write_records
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import Samples


@runtime_checkable
class LearnsFromRollouts(Protocol):
    """What a LightningModule has to offer to have its rollouts shown: one attribute.

    `last_rollout` holds the texts that were last learned from and their rewards, None before.
    """

    last_rollout: tuple[Samples, RewardBatch] | None


class RolloutSamples(pl.Callback):
    """Keeps the texts of every nth rollout with their rewards: a mean does not show how a reward
    is being had.

    All texts of the rollout go to `<log dir>/samples/rollout/step=000123.jsonl`, with each
    component and `total`, and a table of some to Weights & Biases (`rollout/samples`) where the
    trainer logs there. The step is that before the update. Under several ranks these are the texts
    of rank 0. `fast_dev_run` writes nothing.

    Args:
        every_n_batches: How often.
        table_rows: Rows of the table, spread over the rollout.

    Raises:
        ValueError: A number that is not positive.
        MisconfigurationException: In `setup`: the module keeps no rollout.
    """

    def __init__(self, every_n_batches: int = 10, table_rows: int = 16) -> None:
        super().__init__()
        for name, count in (("every_n_batches", every_n_batches), ("table_rows", table_rows)):
            if count < 1:
                raise ValueError(f"{name} = {count}: give a positive number")
        self.every_n_batches = every_n_batches
        self.table_rows = table_rows
        self._step = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks that there are rollouts."""
        if stage == "fit" and not isinstance(pl_module, LearnsFromRollouts):
            raise MisconfigurationException(
                f"RolloutSamples shows last_rollout, and {type(pl_module).__name__} has none: set "
                "self.last_rollout = (samples, self.reward(samples)) in training_step, and None "
                "before"
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Notes the step."""
        self._step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Writes what was learned from, where it is time to."""
        trial = trainer.fast_dev_run  # type: ignore[attr-defined]
        if trial or not trainer.is_global_zero or batch_idx % self.every_n_batches:
            return
        if not isinstance(pl_module, LearnsFromRollouts) or pl_module.last_rollout is None:
            return
        samples, scored = pl_module.last_rollout
        scores = {**scored.components, "total": scored.total}
        folder = Path(trainer.log_dir or trainer.default_root_dir) / "samples" / "rollout"
        write_records(folder / f"step={self._step:06d}.jsonl", samples, scores)
        rows, step = self.table_rows, self._step
        log_table(trainer.loggers, "rollout/samples", samples, scores, rows, step)
