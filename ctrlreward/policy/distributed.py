"""Collectives of the training step: rewards, statistics and token counts over all ranks.

Each rank samples, scores and learns from its own prompts, and gradients are averaged. Batch
statistics are computed over the batches of all ranks here, so that two ranks learn the same as one
rank would from both batches. Every rank has to make each of these calls; with a single rank they
are local.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ctrlreward.ranks import on_every_rank, rank_and_ranks
from ctrlreward.reward import RewardBatch


def gather_rewards(score: Callable[[], RewardBatch]) -> tuple[RewardBatch, RewardBatch]:
    """Return the rewards of this rank's batch, and those of all ranks as one batch.

    Args:
        score: Returns this rank's rewards.

    Raises:
        Exception: The exception that `score` raised on this rank.
        RuntimeError: `score` failed on another rank, or every sample of every rank failed.
    """
    batches = on_every_rank(score)
    gathered = RewardBatch.concat(batches)
    if gathered.failed.all():
        raise RuntimeError(
            f"all {len(gathered.total)} samples of this step got NaN as reward: there is nothing "
            "to learn from; see the scorers' warnings for the reason"
        )
    return batches[rank_and_ranks()[0]], gathered


def gather_values(values: Tensor) -> tuple[Tensor, slice]:
    """Concatenate the values of all ranks, in rank order.

    Args:
        values: This rank's values, shape (n,); n may differ between ranks.

    Returns:
        The values of all ranks, without gradients, and the slice that holds this rank's own.
    """
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
