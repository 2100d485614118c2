"""Prompts in batches, as recipes train on them."""

from __future__ import annotations

import random

from torch.utils.data import DataLoader

from ctrlreward.samples import Samples


def training_batches(
    prompts: Samples, batch_size: int, steps: int, seed: int
) -> DataLoader[Samples]:
    """`steps` batches, in which all prompts are used, shuffled anew, before one is used again."""
    order: list[int] = []
    shuffler = random.Random(seed)
    while len(order) < steps * batch_size:
        order += shuffler.sample(range(len(prompts)), len(prompts))
    starts = range(0, steps * batch_size, batch_size)
    batches = [prompts[order[start : start + batch_size]] for start in starts]
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def one_item(prompts: Samples) -> DataLoader[Samples]:
    """A validation of one item: what is validated are generations from held-out prompts."""
    return DataLoader([prompts[:1]], batch_size=None)  # type: ignore[arg-type]
