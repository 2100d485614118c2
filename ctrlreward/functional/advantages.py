"""Advantages of completions.

Rewards and advantages have shape (n,), and `groups` are integers, equal for the completions of a
prompt, shape (n,). The reward of a failed sample is NaN: it is excluded from all statistics and its
advantage is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_centred_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Subtract the mean of the group (Dr. GRPO, Liu et al. 2025), shape (n,).

    Examples:
        >>> group_centred_advantages(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([-1.,  1.,  0.])
    """
    mean, _ = _group_means(rewards, groups)
    return torch.nan_to_num(rewards - mean)


def leave_one_out_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Subtract the mean of the other samples of the group (RLOO, Ahmadian et al. 2024), shape (n,).

    The only valid sample of a group gets 0.

    Examples:
        >>> leave_one_out_advantages(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([-2.,  2.,  0.])
    """
    mean, count = _group_means(rewards, groups)
    return torch.nan_to_num((rewards - mean) * count / (count - 1).clamp(min=1))


def batch_baseline_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Subtract the mean of the batch (REINFORCE with a baseline, Williams 1992), shape (n,)."""
    return group_centred_advantages(rewards, torch.zeros_like(groups))


def group_deviation(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return the unbiased deviation of the valid rewards of each sample's group, shape (n,).

    0 for a group with fewer than two. GRPO (Shao et al. 2024) divides `group_centred_advantages`
    by it.

    Examples:
        >>> group_deviation(torch.tensor([0.0, 1.0, 2.0, 9.0]), torch.tensor([0, 0, 0, 1]))
        tensor([1., 1., 1., 0.])
    """
    mean, _ = _group_means(rewards, groups)
    squares, count = _group_means((rewards - mean) ** 2, groups)
    return torch.nan_to_num((squares * count / (count - 1).clamp(min=1)).sqrt())


def batch_deviation(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return the unbiased deviation of all valid rewards, for each sample; 0 for fewer than two."""
    return group_deviation(rewards, torch.zeros_like(groups))


def decoupled_rewards(
    components: Tensor, weights: Tensor, groups: Tensor, epsilon: float = 1e-4
) -> Tensor:
    """Normalise each component separately within its group, and sum (GDPO, Liu et al. 2026), (n,).

    Eqs. 4 and 5: Σ_k w_k (r_k − mean of the group) / (deviation of the group + ε), with components
    r, shape (n, k), and weights w, shape (k,). Eq. 6 is `batch_baseline_advantages` over
    `batch_deviation`. A sample that lacks a component is NaN, and excluded from all statistics.

    Examples:
        >>> r = torch.tensor([[0.0, 10.0], [1.0, 30.0], [1.0, torch.nan]])
        >>> decoupled_rewards(r, torch.tensor([1.0, 1.0]), torch.tensor([0, 0, 0]), epsilon=0.0)
        tensor([-1.4142,  1.4142,     nan])
    """
    missing = components.isnan().any(dim=1)
    valid = components.masked_fill(missing[:, None], torch.nan)
    normalised = [
        weight
        * group_centred_advantages(column, groups)
        / (group_deviation(column, groups) + epsilon)
        for weight, column in zip(weights, valid.unbind(dim=1), strict=True)
    ]
    return torch.stack(normalised).sum(dim=0).masked_fill(missing, torch.nan)


def zero_signal(values: Tensor, groups: Tensor) -> Tensor:
    """Return True for the samples of a group in which the valid values don't differ, bool, (n,).

    A deviation of at most 1e-8 counts as 0, as in TRL, and so do fewer than two valid values. DAPO
    (Yu et al. 2025, section 3.2) leaves such groups out.
    """
    return group_deviation(values, groups) <= 1e-8


def _group_means(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the number of valid rewards of each sample's group, both (n,)."""
    _, indices = groups.unique(return_inverse=True)
    valid = (~rewards.isnan()).to(rewards.dtype)
    zeros = rewards.new_zeros(int(indices.max()) + 1)
    count = zeros.index_add(0, indices, valid)[indices]
    known = rewards.nan_to_num(-torch.inf)
    largest = zeros.scatter_reduce(0, indices, known, "amax", include_self=False)[indices]
    # The mean of equal rewards is not rounded, so that they differ by exactly 0 from it.
    below = zeros.index_add(0, indices, torch.nan_to_num(rewards - largest))[indices]
    return largest + below / count, count
