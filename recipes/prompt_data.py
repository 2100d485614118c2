"""Data loaders of prompts for recipes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Sampler

from ctrlreward.recipes.epoch_order import ResumableLoader
from ctrlreward.recipes.trained_first import TrainedFirst
from ctrlreward.samples import Samples


class _Remaining(Sampler[int]):
    """Numbers of the batches that a trainer has not begun, in order."""

    def __init__(self, data: pl.LightningDataModule, batches: int) -> None:
        self.data, self.batches = data, batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        trainer = self.data.trainer
        begun = trainer.fit_loop.total_batch_idx + 1 if trainer else 0
        yield from range(begun, self.batches)


def training_batches(
    data: pl.LightningDataModule, prompts: Samples, batch_size: int, steps: int, seed: int
) -> DataLoader[Samples]:
    """Return `steps` batches of prompts, of which a resumed trainer gets those that are left.

    Every prompt is used once before any is used again; the order is shuffled for each such round.

    Args:
        data: Data module, for its trainer.
        prompts: Prompts.
        batch_size: Prompts per batch.
        steps: Number of batches.
        seed: Seed of the order.
    """
    order: list[int] = []
    shuffler = random.Random(seed)
    while len(order) < steps * batch_size:
        order += shuffler.sample(range(len(prompts)), len(prompts))
    starts = range(0, steps * batch_size, batch_size)
    batches = [prompts[order[start : start + batch_size]] for start in starts]
    return ResumableLoader(batches, batch_size=None, sampler=_Remaining(data, steps))  # type: ignore[arg-type]


class PromptBatches(pl.LightningDataModule):
    """Batches of prompts, reshuffled after every pass. Subclasses define `read_prompts`.

    Args:
        batch_size: Prompts per step.
        steps: Number of batches; the trainer's `max_steps` may stop earlier.
        seed: Seed of the order.
        models: Models that are trained first where their folders do not exist.
    """

    def __init__(
        self, batch_size: int, steps: int, seed: int, models: Sequence[TrainedFirst] = ()
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed
        self.models = models

    def read_prompts(self) -> Samples:
        """Return all prompts."""
        raise NotImplementedError

    def prepare_data(self) -> None:
        """Train the models that do not exist yet."""
        for model in self.models:
            model.train_if_absent()

    def setup(self, stage: str) -> None:
        """Read the prompts."""
        self.prompts = self.read_prompts()

    def train_dataloader(self) -> DataLoader[Samples]:
        """Return batches as `Samples` of `batch_size` prompts."""
        return training_batches(self, self.prompts, self.batch_size, self.steps, self.seed)

    def val_dataloader(self) -> DataLoader[Samples]:
        """Return a loader of one item; see `validation_placeholder`."""
        return validation_placeholder(self.prompts)

    def test_dataloader(self) -> DataLoader[Samples]:
        """Return the loader of `val_dataloader`."""
        return self.val_dataloader()


def validation_placeholder(prompts: Samples) -> DataLoader[Samples]:
    """Return a loader of one item, which makes the trainer run its validation loop.

    `GenerationScorer` brings its own held-out prompts, so the item is not used.
    """
    return DataLoader([prompts[:1]], batch_size=None)  # type: ignore[arg-type]
