"""Settings of the process that recipes train with on the CPU."""

from __future__ import annotations

import pytorch_lightning as pl
import torch

from ctrlreward.processor import heap


class CPUTraining(pl.Callback):
    """Keeps what a step frees on the CPU for the next one, which need not map it anew.

    The settings are the process's, and end with the training.

    Args:
        flush_denormals: Also take denormal numbers, which cost a CPU many times a normal one, as 0.
    """

    def __init__(self, flush_denormals: bool = False) -> None:
        super().__init__()
        self.flush_denormals = flush_denormals

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Flush denormal numbers from now on; threads inherit it if they are started later."""
        if stage == "fit" and self.flush_denormals:
            torch.set_flush_denormal(True)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep freed memory from now on."""
        if pl_module.device.type == "cpu":
            heap.reuse_freed()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Return freed memory to the system, and end the flushing."""
        self._end()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Return freed memory to the system, and end the flushing."""
        self._end()

    def _end(self) -> None:
        heap.return_freed()
        if self.flush_denormals:
            torch.set_flush_denormal(False)
