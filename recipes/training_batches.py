"""Batches of training data in an order that a resumed run continues, in mid-epoch as well."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Sampler

from ctrlreward.recipes.trained_first import TrainedFirst
from ctrlreward.samples import Samples

Batch = TypeVar("Batch")
Item = TypeVar("Item")


class EpochOrder(Sampler[int]):
    """Numbers of batches in an order that depends on the seed and the epoch alone.

    The trainer's count of batches says where to continue: a resumed trainer knows neither its epoch
    nor its batch when it asks for the first one (Lightning calls `set_epoch` with 0). Then follow
    as many batches as an epoch has; Lightning takes the rest of its epoch.

    Args:
        data: Data module, for its trainer; without one, the order begins with epoch 0.
        batches: Number of batches of an epoch.
        seed: Seed of the order; None leaves it as it is.
        numbered: Count on from epoch to epoch: batch i of epoch e is e · `batches` + i, so that a
            data set can make it anew each time.
    """

    def __init__(
        self,
        data: pl.LightningDataModule,
        batches: int,
        seed: int | None,
        numbered: bool = False,
    ) -> None:
        self.data, self.batches, self.seed, self.numbered = data, batches, seed, numbered

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        begun = self.data.trainer.fit_loop.total_batch_idx + 1 if self.data.trainer else 0
        epoch, done = divmod(begun, self.batches)
        yield from self._order(epoch)[done:]
        yield from self._order(epoch + 1)[:done]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(self.batches))
        if self.seed is not None:
            random.Random(self.seed + epoch).shuffle(order)
        return [epoch * self.batches + i for i in order] if self.numbered else order


class ResumableLoader(DataLoader[Batch]):
    """Loader whose sampler knows where to continue, as Lightning requires for a resumed run."""

    def state_dict(self) -> dict[str, Any]:
        """Return no state: the trainer counts batches, and its checkpoint has the count."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load no state."""


def list_batches(
    items: Sequence[Item], batch_size: int, seed: int, shuffle: bool = True
) -> DataLoader[Item]:
    """Return a loader of batches as lists, in a new order each epoch unless `shuffle` is False."""
    order = torch.Generator().manual_seed(seed)
    data: Any = items
    return DataLoader(data, batch_size, shuffle, collate_fn=list, generator=order)


class PromptBatches(pl.LightningDataModule):
    """Batches of prompts, reshuffled after every pass.

    Args:
        read_prompts: Returns all prompts; called in `setup`, when the models exist.
        batch_size: Prompts per step.
        steps: Number of batches; the trainer's `max_steps` may stop earlier.
        seed: Seed of the order.
        models: Models that are trained first where their folders do not exist.
    """

    def __init__(
        self,
        read_prompts: Callable[[], Samples],
        batch_size: int,
        steps: int,
        seed: int,
        models: Sequence[TrainedFirst] = (),
    ) -> None:
        super().__init__()
        self.read_prompts = read_prompts
        self.batch_size, self.steps, self.seed, self.models = batch_size, steps, seed, models

    def prepare_data(self) -> None:
        for model in self.models:
            model.train_if_absent()

    def setup(self, stage: str) -> None:
        self.prompts = self.read_prompts()

    def train_dataloader(self) -> DataLoader[Samples]:
        """Return batches of `batch_size` prompts; every prompt once before any is used again."""
        order: list[int] = []
        shuffler = random.Random(self.seed)
        while len(order) < self.steps * self.batch_size:
            order += shuffler.sample(range(len(self.prompts)), len(self.prompts))
        starts = range(0, self.steps * self.batch_size, self.batch_size)
        batches = [self.prompts[order[start : start + self.batch_size]] for start in starts]
        in_order = EpochOrder(self, self.steps, None)
        return ResumableLoader(batches, batch_size=None, sampler=in_order)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Samples]:
        """Return a loader of one item, which makes the trainer run its validation loop."""
        return DataLoader([self.prompts[:1]], batch_size=None)  # type: ignore[arg-type]
