"""GRPO and REINFORCE as their papers state them, completion by completion.

Tests compare `PolicyTuner` and the parts of `functional.policy` with these.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_normalised_advantages(rewards: Tensor, groups: Tensor, epsilon: float = 1e-4) -> Tensor:
    """GRPO with outcome supervision (Shao et al. 2024); 0 for a failed or only sample."""
    advantages = torch.zeros_like(rewards)
    for group in groups.unique():
        valid = (groups == group) & ~rewards.isnan()
        if valid.sum() > 1:
            kept = rewards[valid]
            advantages[valid] = (kept - kept.mean()) / (kept.std() + epsilon)
    return advantages


def grpo_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean over completions of the mean over tokens of -ratio x advantage, at a ratio of 1."""
    loss = 0 * log_probs.sum()  # of completions without tokens
    for row, advantage, kept in zip(log_probs, advantages, mask.bool(), strict=True):
        if kept.any():
            loss = loss - (advantage * (row - row.detach()).exp()[kept]).mean()
    return loss / len(log_probs)


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean over completions of -advantage x log-probability of the completion (Williams 1992)."""
    rows = zip(log_probs, advantages, mask.bool(), strict=True)
    return -torch.stack([a * row[kept].sum() for row, a, kept in rows]).mean()
