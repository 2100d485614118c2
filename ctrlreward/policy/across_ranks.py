"""What training steps of several ranks have to know of each other.

Each rank writes, scores and learns from prompts of its own, and gradients are averaged. What is a
statistic of the batch is one of all ranks' batches here, so that two ranks learn what one would
from both batches. Every rank has to make each of these calls; with a single rank they are plain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ctrlreward.ranks import on_every_rank, rank_and_ranks
from ctrlreward.reward import RewardBatch


def scored_on_all(score: Callable[[], RewardBatch]) -> tuple[RewardBatch, RewardBatch]:
    """The rewards of this rank's batch, and those of all ranks in one.

    Raises:
        Exception: What the score raised on this rank.
        RuntimeError: It failed on another rank, or no sample of any rank has a reward.
    """
    everyone = on_every_rank(score)
    together = RewardBatch.concat(everyone)
    if together.failed.all():
        raise RuntimeError(
            f"all {len(together.total)} samples of this step got NaN as reward: see the warnings "
            "of the scorers; nothing can be learned from it"
        )
    return everyone[rank_and_ranks()[0]], together


def pooled(values: Tensor) -> tuple[Tensor, slice]:
    """The values of all ranks, one behind the other, and where this rank's are among them.

    Args:
        values: Of this rank, any number in one dimension.
    """
    everyone = on_every_rank(lambda: values.detach().cpu().numpy())
    start = sum(len(numbers) for numbers in everyone[: rank_and_ranks()[0]])
    found = torch.cat([torch.from_numpy(numbers) for numbers in everyone]).to(values.device)
    return found, slice(start, start + len(values))


def share_of_mean(count: Tensor) -> float:
    """How a count of this rank compares with the mean over ranks; 1 where there is only one.

    A mean over this rank's tokens, weighted by it, becomes a part of the mean over all tokens.
    """
    everyone = on_every_rank(lambda: float(count))
    return everyone[rank_and_ranks()[0]] * len(everyone) / max(sum(everyone), 1.0)
