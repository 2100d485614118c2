"""A module for Lightning's trainer that needs no model."""

from __future__ import annotations

from typing import Any

import torch
from lightning_choice import pl
from torch.utils.data import DataLoader


class Counting(pl.LightningModule):
    """Module whose only weight counts optimizer steps."""

    batches = 8  # of an epoch

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return -self.weight

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def train_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(self.batches))  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[int]:
        return DataLoader(range(1))  # type: ignore[arg-type]
