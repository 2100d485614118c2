"""Freeing a reward's models when training is cut off."""

from __future__ import annotations

import pytorch_lightning as pl

from ctrlreward.reward import Reward


class ReleaseOnException(pl.Callback):
    """Ends a reward's worker and frees its models; of a module, Lightning tells only callbacks.

    Args:
        reward: Whose.
    """

    def __init__(self, reward: Reward) -> None:
        super().__init__()
        self.reward = reward

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Waits for what is being scored, and drops what is not yet."""
        self.reward.release()
