"""Clocks of training steps and their phases, of trainers of Lightning and of transformers."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
import torch
from transformers import TrainerCallback

from ctrlreward.policy import PolicyTuner


def now() -> float:
    """Return the time when an accelerator, if there is one, has done all its work."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None:
        getattr(torch, device.type).synchronize()
    return time.perf_counter()


class Clock:
    """Seconds of each step, of its sampling and of its reward; tokens per step."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self.sampling: list[float] = []
        self.reward: list[float] = []
        self.tokens: list[float] = []
        self.started = 0.0


class LightningClock(Clock, pl.Callback):
    """The same, of a trainer of Lightning."""

    def on_train_batch_start(self, *args: Any) -> None:
        self.started = now()

    def on_train_batch_end(self, *args: Any) -> None:
        self.step.append(now() - self.started)


class TransformersClock(Clock, TrainerCallback):
    """The same, of a trainer of transformers. The step ends when the optimizer has moved."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.started = now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.step.append(now() - self.started)


class TimedTuner(PolicyTuner):
    """A tuner that keeps the seconds of sampling and of the reward."""

    clock: Clock

    def _log_step(self, metrics: dict[str, float], size: int, has_signal: bool) -> None:
        tokens = metrics["rollout/length"] * size
        sampling = tokens / metrics["rollout/tokens_per_second"]
        step = sampling / metrics["time/rollout_share"]
        self.clock.sampling.append(sampling)
        self.clock.reward.append(metrics["time/reward_share"] * step)
        self.clock.tokens.append(tokens)
        super()._log_step(metrics, size, has_signal)
