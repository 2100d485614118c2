"""Rollouts of a policy with their rewards, written to disk while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from ctrlreward.arguments import positive
from ctrlreward.callbacks.base_callback import CallbackMixin, log_folder
from ctrlreward.callbacks.wandb_rows import log_sample_table
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.records import write_scored_samples


@runtime_checkable
class LearnsFromRollouts(Protocol):
    """A LightningModule with texts and rewards of its last update, None before the first."""

    last_rollout: tuple[Samples, RewardBatch] | None


class RolloutSamplesMixin(CallbackMixin):
    """Writes the texts of every nth rollout with their rewards, to make reward hacking visible.

    All texts of the rollout go to `<log dir>/samples/rollout/step=000123.jsonl`, with each reward
    component and `total`, some to a Weights & Biases table (`rollout/samples`). The step is the one
    after the update. A row of the trainer has the last table before it, so log as often. Only rank
    0 writes, and nothing with `fast_dev_run`.

    Args:
        every_n_batches: Interval in training batches.

    Examples:
        >>> from ctrlreward.callbacks import RolloutSamples
        >>> rollouts = RolloutSamples(every_n_batches=50)  # for Trainer(callbacks=[rollouts])
    """

    def __init__(self, every_n_batches: int = 10) -> None:
        super().__init__()
        self.every_n_batches = positive("every_n_batches", every_n_batches)
        self._folder = Path()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and not isinstance(pl_module, LearnsFromRollouts):
            self.refuse(
                f"{type(pl_module).__name__} has no last_rollout. Set self.last_rollout = "
                "(samples, self.reward(samples)) in training_step, and None in __init__."
            )
        self._folder = log_folder(trainer) / "samples" / "rollout"

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        rollout = cast(LearnsFromRollouts, pl_module).last_rollout
        trial = trainer.fast_dev_run or not trainer.is_global_zero  # type: ignore[attr-defined]
        if rollout is None or trial or batch_idx % self.every_n_batches:
            return
        samples, rewards = rollout
        scores = {**rewards.components, "total": rewards.total}
        path = self._folder / f"step={trainer.global_step:06d}.jsonl"
        write_scored_samples(path, samples, scores, reasons=rewards.reasons)
        log_sample_table(trainer, "rollout/samples", samples, scores, rewards.reasons, {})
