"""Clock of the steps of a `PolicyTuner` and their phases."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
import torch


def now() -> float:
    """Return the time when an accelerator, if there is one, has done all its work."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None:
        getattr(torch, device.type).synchronize()
    return time.perf_counter()


class LightningClock(pl.Callback):
    """Seconds of each step, of its sampling and of its reward; tokens per step."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self.sampling: list[float] = []
        self.reward: list[float] = []
        self.tokens: list[float] = []
        self.started = 0.0

    def on_train_batch_start(self, *args: Any) -> None:
        self.started = now()

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Read the shares of sampling and reward that the module logs."""
        seconds, logged = now() - self.started, trainer.callback_metrics
        self.step.append(seconds)
        self.sampling.append(seconds * float(logged["time/rollout_share"]))
        self.reward.append(seconds * float(logged["time/reward_share"]))
        self.tokens.append(float(logged["rollout/tokens_per_second"]) * self.sampling[-1])
