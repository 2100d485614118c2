"""Advantages: how much better than expected a completion's reward is, or each of its tokens.

Of whole completions, rewards and advantages have one value each, shape (n,); groups are integers
that say which completions answer the same prompt, shape (n,). A failed sample's reward is NaN: it
takes no part in any statistics and gets the advantage 0, so that it teaches nothing.

Of tokens, rewards, values, advantages and the mask have the shape (n, tokens); the mask is 1 on a
completion's tokens, which stand in front, and 0 behind them. A value is the return that is
expected before a token is written.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_centred_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """A reward less the mean of its group (Dr. GRPO, Liu et al. 2025)."""
    mean, _ = _group_means(rewards, groups)
    return torch.nan_to_num(rewards - mean)


def group_normalised_advantages(rewards: Tensor, groups: Tensor, epsilon: float = 1e-4) -> Tensor:
    """How many standard deviations a reward lies above its group's mean (GRPO, Shao et al. 2024,
    the outcome-supervised form).

    Args:
        rewards: NaN where a sample failed.
        groups: Which samples answer the same prompt, integers, shape (n,).
        epsilon: Added to the standard deviation.
    """
    return group_centred_advantages(rewards, groups) / (group_deviation(rewards, groups) + epsilon)


def leave_one_out_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """A reward less the mean of the others of its group (RLOO, Ahmadian et al. 2024).

    A group's only valid sample gets 0.
    """
    mean, count = _group_means(rewards, groups)
    return torch.nan_to_num((rewards - mean) * count / (count - 1).clamp(min=1))


def batch_baseline_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """A reward less the mean of the batch (REINFORCE with a baseline, Williams 1992).

    Groups play no part.
    """
    return torch.nan_to_num(rewards - rewards.nanmean())


def self_critical_advantages(rewards: Tensor, groups: Tensor, greedy: Tensor) -> Tensor:
    """A reward less that of the greedy completion of the same prompt (Rennie et al. 2017, eq. 8).

    Args:
        rewards: NaN where a sample failed.
        groups: The place in `greedy` of each sample's prompt, integers, shape (n,).
        greedy: Reward of each prompt's greedy completion, shape (prompts,); where it is NaN the
            prompt's samples get 0.
    """
    return torch.nan_to_num(rewards - greedy[groups])


def group_deviation(rewards: Tensor, groups: Tensor) -> Tensor:
    """Standard deviation of the valid rewards of each sample's group, shape (n,).

    The unbiased one, as `torch.std`; 0 for a group of fewer than two.
    """
    mean, _ = _group_means(rewards, groups)
    squares, count = _group_means((rewards - mean) ** 2, groups)
    return torch.nan_to_num((squares * count / (count - 1).clamp(min=1)).sqrt())


def batch_deviation(rewards: Tensor, groups: Tensor) -> Tensor:
    """Standard deviation of all valid rewards, the same for each sample, shape (n,).

    The unbiased one; 0 for fewer than two.
    """
    return group_deviation(rewards, torch.zeros_like(groups))


def rewards_at_end(rewards: Tensor, mask: Tensor) -> Tensor:
    """A completion's reward at its last token and 0 at the others, shape (n, tokens).

    Args:
        rewards: Shape (n,).
        mask: See above.
    """
    last = mask.long().sum(dim=1, keepdim=True) - 1
    places = torch.arange(mask.shape[1], device=mask.device)
    return rewards[:, None] * (places == last)


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, gae_lambda: float = 0.95
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), shape (n, tokens).

    The sum over later tokens l of (γλ)^l δ, with δ = reward + γ · next value - value. Nothing is
    expected behind the last token, whether the completion ended there or was cut off. Added to
    the values, advantages are the returns that values should be.

    Args:
        rewards: Of each token.
        values: Of each token.
        mask: See above; 0 where it is 0.
        gamma: How much a reward one token later is worth, in [0, 1].
        gae_lambda: In [0, 1]; 0 trusts the next value, 1 only rewards.
    """
    following = torch.zeros_like(values[:, 0])
    value_after = torch.zeros_like(following)
    advantages = []
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * value_after - values[:, t]
        following = (delta + gamma * gae_lambda * following) * mask[:, t]
        value_after = values[:, t] * mask[:, t]
        advantages.append(following)
    return torch.stack(advantages[::-1], dim=1)


def whitened(
    values: Tensor, mask: Tensor, among: Tensor | None = None, epsilon: float = 1e-4
) -> Tensor:
    """How many standard deviations each unmasked value lies above their mean; 0 where masked.

    Args:
        values: Shape (n, tokens).
        mask: Of the same shape; any of its places may be 1.
        among: What mean and deviation are of, shape (their number,); None: the unmasked values.
        epsilon: Added to the standard deviation, the unbiased one.
    """
    among = values[mask.bool()] if among is None else among
    mean = among.sum() / max(len(among), 1)
    deviation = (((among - mean) ** 2).sum() / max(len(among) - 1, 1)).sqrt()
    return (values - mean) * mask / (deviation + epsilon)


def _group_means(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each sample's group over the valid rewards, and how many those are; both (n,)."""
    _, places = groups.unique(return_inverse=True)
    valid = (~rewards.isnan()).to(rewards.dtype)
    zeros = rewards.new_zeros(int(places.max()) + 1)
    count = zeros.index_add(0, places, valid)[places]
    total = zeros.index_add(0, places, torch.nan_to_num(rewards))[places]
    return total / count, count
