"""Data loaders of prompts for recipes."""

from __future__ import annotations

import random

from torch.utils.data import DataLoader

from ctrlreward.samples import Samples


def training_batches(
    prompts: Samples, batch_size: int, steps: int, seed: int
) -> DataLoader[Samples]:
    """Return `steps` batches of prompts.

    Every prompt is used once before any is used again; the order is shuffled for each such round.
    """
    order: list[int] = []
    shuffler = random.Random(seed)
    while len(order) < steps * batch_size:
        order += shuffler.sample(range(len(prompts)), len(prompts))
    starts = range(0, steps * batch_size, batch_size)
    batches = [prompts[order[start : start + batch_size]] for start in starts]
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def validation_placeholder(prompts: Samples) -> DataLoader[Samples]:
    """Return a loader of one item, which makes the trainer run its validation loop.

    `GenerationScorer` brings its own held-out prompts, so the item is not used.
    """
    return DataLoader([prompts[:1]], batch_size=None)  # type: ignore[arg-type]
