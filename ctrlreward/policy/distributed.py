"""Collectives of the training step: statistics and token counts over all ranks.

Each rank learns from its own prompts, and gradients are averaged. With these statistics two ranks
learn the same as one rank from both batches. Every rank has to make each of these calls;
with a single rank they are local.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ctrlreward.ranks import on_every_rank, rank_and_ranks


def gather_values(values: Tensor) -> tuple[Tensor, slice]:
    """Return the values of all ranks, in rank order, and the slice of this rank."""
    arrays = on_every_rank(lambda: values.detach().cpu().numpy())
    start = sum(len(array) for array in arrays[: rank_and_ranks()[0]])
    gathered = torch.cat([torch.from_numpy(array) for array in arrays]).to(values.device)
    return gathered, slice(start, start + len(values))


def share_of_mean(count: Tensor) -> float:
    """Return this rank's count divided by the mean count over ranks; 1 with a single rank.

    A mean over this rank's tokens, multiplied by this share and averaged over ranks, is the mean
    over the tokens of all ranks.
    """
    counts = on_every_rank(lambda: float(count))
    return counts[rank_and_ranks()[0]] * len(counts) / max(sum(counts), 1.0)
