"""Memory of training: what a step frees is reused, and what failed training holds is freed."""

from __future__ import annotations

from typing import Any

from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.processor import heap
from ctrlreward.reward import Reward


class MemoryMixin(CallbackMixin):
    """Keeps what a step frees on the CPU for the next one; frees the reward when training fails.

    Lightning calls `on_exception` of callbacks, but not of modules.

    Args:
        reward: The reward to release.
    """

    def __init__(self, reward: Reward) -> None:
        super().__init__()
        self.reward = reward

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep freed memory if the policy trains on the CPU."""
        if pl_module.device.type == "cpu":
            heap.reuse_freed()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Note how much memory a step needs."""
        heap.end_step()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return freed memory to the system."""
        heap.return_freed()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Wait for the batch that is being scored, and drop those that have not started."""
        heap.return_freed()
        self.reward.release()
