"""Policy gradients on completions: losses, importance ratios, KL estimates, masks.

Advantages have one value a completion, shape (n,), or one a token, shape (n, tokens);
`functional.advantages` makes them of rewards.
Log-probabilities, their reference and the mask have one value a token, shape (n, tokens); the mask
is 1 on the completion's tokens up to and with its end token, 0 behind it.

A loss is put together from three pieces: a ratio of each token to the policy that sampled it, what
a token costs (`clipped_surrogate`, `score_function`), and how much it counts (`*_weights`, whose
product with the costs is summed). Since the weights are known before any cost, a batch can be
taken in parts whose losses add up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ctrlreward.functional.advantages import (
    batch_baseline_advantages,
    group_normalised_advantages,
    leave_one_out_advantages,
)

__all__ = [
    "batch_baseline_advantages",
    "clipped_surrogate",
    "completion_mask",
    "constant_weights",
    "ended",
    "explained_variance",
    "group_normalised_advantages",
    "grpo_loss",
    "is_clipped",
    "kl_estimate",
    "kl_k1",
    "kl_k1_penalty",
    "kl_k2",
    "leave_one_out_advantages",
    "reinforce_loss",
    "score_function",
    "sequence_mean",
    "sequence_ratio",
    "sequence_weights",
    "token_ratio",
    "token_weights",
    "value_loss",
]

# Importance ratios


def token_ratio(log_probs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """How much more probable each token has become since it was sampled (PPO, Schulman et al.
    2017, eq. 6), shape (n, tokens); 1 where masked.

    Args:
        log_probs: Of the policy.
        old: Of the policy that sampled, without gradients.
        mask: See above.
    """
    return ((log_probs - old) * mask).exp()


def sequence_ratio(log_probs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """The ratio of whole completions, to the power of 1 / length (GSPO, Zheng et al. 2025, eq. 7).

    Returns:
        Shape (n, tokens): the completion's value at each of its tokens.
    """
    return sequence_mean(log_probs - old, mask).exp()[:, None].expand_as(log_probs)


# What a token costs


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip: tuple[float, float] = (0.2, 0.2)
) -> Tensor:
    """-min(ratio x advantage, clipped ratio x advantage) (PPO, eq. 7), shape (n, tokens).

    Args:
        ratio: Shape (n, tokens), in (0, ∞).
        advantages: Shape (n,) or (n, tokens).
        clip: How far below and above 1 the ratio still earns anything. A higher upper bound than
            lower one leaves unlikely tokens room to grow (clip-higher of DAPO, Yu et al. 2025,
            eq. 10).
    """
    lower, upper = clip
    advantage = _of_tokens(advantages)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - lower, 1 + upper) * advantage)


def is_clipped(ratio: Tensor, advantages: Tensor, clip: tuple[float, float] = (0.2, 0.2)) -> Tensor:
    """Where `clipped_surrogate` has no gradient because of the clip, bool, shape (n, tokens)."""
    lower, upper = clip
    advantage = _of_tokens(advantages)
    return ((ratio > 1 + upper) & (advantage > 0)) | ((ratio < 1 - lower) & (advantage < 0))


def score_function(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """-advantage x log-probability (REINFORCE, Williams 1992), shape (n, tokens).

    Holds for tokens of the present policy only: it knows no ratio to an older one.
    """
    return -_of_tokens(advantages) * log_probs


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float | None = 0.2) -> Tensor:
    """Half the squared error of values, shape (n, tokens).

    With a clip it is the larger of this and of the same where the value has gone no farther than
    that from the old one, so that a value gains nothing by going farther at once. The paper of PPO
    (Schulman et al. 2017) lacks it; its authors' program has it.

    Args:
        values: As predicted now, shape (n, tokens).
        old: As predicted when the tokens were sampled, shape (n, tokens).
        returns: What they should be, shape (n, tokens).
        clip: In units of the reward; None: no clip.
    """
    errors = (values - returns) ** 2
    if clip is not None:
        near = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - returns) ** 2)
    return errors / 2


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns) over unmasked tokens, at most 1, a scalar.

    1: values are right up to a constant; 0: they tell no more than any constant; NaN where all
    returns are equal.
    """
    kept = mask.bool()
    spread = returns[kept].var(correction=0)
    unexplained = (returns - values)[kept].var(correction=0)
    return torch.where(spread > 0, 1 - unexplained / spread, torch.nan)


# How much a token counts: loss = (weights x costs).sum()


def sequence_weights(mask: Tensor) -> Tensor:
    """Mean over completions of the mean over their tokens (GRPO): each completion counts the same.

    A completion without any token is one of those that the mean is over.
    """
    return mask / mask.sum(dim=-1, keepdim=True).clamp(min=1) / len(mask)


def token_weights(mask: Tensor) -> Tensor:
    """Mean over all tokens of the batch (DAPO, eq. 8): each token counts the same."""
    return mask / mask.sum().clamp(min=1)


def constant_weights(mask: Tensor, length: float) -> Tensor:
    """Mean over completions of the sum over their tokens, divided by a constant (Dr. GRPO, Liu et
    al. 2025): long completions are not let off.

    Args:
        mask: See above.
        length: The longest completion there can be; 1 makes it the plain sum of REINFORCE.
    """
    return mask / (len(mask) * length)


# Two losses whole


def grpo_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """GRPO's surrogate for one update per rollout: mean over completions of the mean over their
    tokens of -ratio x advantage, where the ratio to the sampling policy has the value 1."""
    ratio = (log_probs - log_probs.detach()).exp()
    return -sequence_mean(ratio * advantages[:, None], mask).mean()


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean over completions of -advantage x log-probability of the whole completion."""
    return -(advantages * (log_probs * mask).sum(dim=-1)).mean()


# KL divergence from a reference, token by token (Schulman 2020, "Approximating KL divergence")


def kl_k1(log_probs: Tensor, reference: Tensor) -> Tensor:
    """k1 = policy - reference: unbiased, of either sign and large variance. In nats."""
    return log_probs - reference


def kl_k2(log_probs: Tensor, reference: Tensor) -> Tensor:
    """k2 = (policy - reference)² / 2: biased, never negative. In nats.

    Its mean gradient over tokens of the policy is the gradient of KL(policy ‖ reference).
    """
    return (log_probs - reference) ** 2 / 2


def kl_estimate(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference) from tokens sampled from the policy.

    The estimator k3 = e^d - 1 - d with d = reference - policy (Schulman 2020): unbiased, never
    negative. Shape as given, in nats.
    """
    difference = reference - log_probs
    return difference.expm1() - difference


def kl_k1_penalty(log_probs: Tensor, reference: Tensor) -> Tensor:
    """The value of k1 with the gradient of k2, shape as given.

    k1 itself is of no use in a loss: over tokens of the policy its gradient has the mean 0.
    """
    k2 = kl_k2(log_probs, reference)
    return kl_k1(log_probs, reference).detach() + (k2 - k2.detach())


# Masks and shapes


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row's unmasked values, shape (n,); 0 for a row without any."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def completion_mask(tokens: Tensor, end_tokens: Tensor) -> Tensor:
    """1 up to and with the first end token of each row, 0 behind it, shape (n, tokens), float."""
    is_end = torch.isin(tokens, end_tokens)
    return (is_end.cumsum(dim=-1) - is_end.long() <= 0).float()


def ended(tokens: Tensor, end_tokens: Tensor) -> Tensor:
    """Which rows hold an end token, bool, shape (n,); the others were cut off by their length."""
    return torch.isin(tokens, end_tokens).any(dim=-1)


def _of_tokens(advantages: Tensor) -> Tensor:
    """Shape (n, tokens), or (n, 1) of those of whole completions."""
    return advantages if advantages.dim() == 2 else advantages[:, None]
