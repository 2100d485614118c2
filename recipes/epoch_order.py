"""Order of training batches that a resumed run goes on with, in the middle of an epoch too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, TypeVar

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Sampler

Batch = TypeVar("Batch")


class EpochOrder(Sampler[int]):
    """Numbers of batches in an order that depends on the seed and the epoch alone.

    The place in it is the trainer's `global_step`, which has to count batches: a resumed trainer
    knows neither its epoch nor its batch when it asks for the first one (Lightning calls
    `set_epoch` with 0), but the step. From there on the order goes on for as many batches as an
    epoch has; Lightning takes those that are left of its own.

    Args:
        data: Data module, for its trainer; without one, the order begins with epoch 0.
        batches: Number of batches of an epoch.
        seed: Seed of the order.
        numbered: Count on from epoch to epoch: batch i of epoch e is e · `batches` + i, so that a
            data set can make it anew each time.
    """

    def __init__(
        self, data: pl.LightningDataModule, batches: int, seed: int, numbered: bool = False
    ) -> None:
        self.data, self.batches, self.seed, self.numbered = data, batches, seed, numbered

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        epoch, done = divmod(
            self.data.trainer.global_step if self.data.trainer else 0, self.batches
        )
        yield from self._order(epoch)[done:]
        yield from self._order(epoch + 1)[:done]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(self.batches))
        random.Random(self.seed + epoch).shuffle(order)
        return [epoch * self.batches + i for i in order] if self.numbered else order


class ResumableLoader(DataLoader[Batch]):
    """Loader whose `EpochOrder` knows where to go on, as Lightning asks of a resumed run."""

    def state_dict(self) -> dict[str, Any]:
        """Return no state: the place is the trainer's step, which the checkpoint has."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load no state."""
