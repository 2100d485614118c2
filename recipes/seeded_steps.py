"""Random numbers of a training step that depend on the seed and the step alone."""

from __future__ import annotations

import os
from typing import Any

import pytorch_lightning as pl
import torch

from ctrlreward.ranks import rank_and_ranks

_STEPS = 1_000_003  # more than a run has


class SeededSteps(pl.Callback):
    """Seeds torch before each training step, so that a resumed run repeats an uninterrupted one.

    A policy that samples its own training texts needs it: a checkpoint does not have the state of
    the generators.

    Args:
        seed: Seed of the run; None takes that of `seed_everything`, else 0.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.seed = seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed by run, rank and batch."""
        rank, _ = rank_and_ranks()
        torch.manual_seed((self._run_seed() * 1_009 + rank) * _STEPS + trainer.global_step)

    def _run_seed(self) -> int:
        return self.seed if self.seed is not None else int(os.environ.get("PL_GLOBAL_SEED", "0"))
