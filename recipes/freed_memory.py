"""Reuse of freed memory by recipes that train on the CPU."""

from __future__ import annotations

import pytorch_lightning as pl

from ctrlreward.processor import heap


class KeepFreedMemory(pl.Callback):
    """Keeps what a step frees on the CPU for the next one, which need not map it anew."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep freed memory from now on."""
        if pl_module.device.type == "cpu":
            heap.reuse_freed()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Return it to the system."""
        heap.return_freed()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Return it to the system."""
        heap.return_freed()
