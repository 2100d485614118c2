"""Policy gradients on completions: costs and weights of tokens, KL, masks.

Advantages have shape (n,), one per completion. Log-probabilities and the mask have shape
(n, tokens). The mask is 1 on a completion's tokens up to and including its end token. The loss is
(weights × costs).sum().
"""

from __future__ import annotations

import torch
from torch import Tensor


def score_function(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Compute -advantage x log-probability (REINFORCE, Williams 1992), the cost of each token.

    Only valid for tokens sampled from the current policy: there is no ratio to an older one.

    Examples:
        >>> score_function(torch.tensor([[-0.5, -2.0]]), advantages=torch.tensor([2.0]))
        tensor([[1., 4.]])
    """
    return -advantages[:, None] * log_probs


def sequence_weights(mask: Tensor) -> Tensor:
    """Return the weights of GRPO's mean over completions of the mean over tokens, (n, tokens).

    Completions without any token count in the mean.

    Examples:
        >>> sequence_weights(torch.tensor([[1, 1], [1, 0]]))
        tensor([[0.2500, 0.2500],
                [0.5000, 0.0000]])
    """
    return mask / mask.sum(dim=-1, keepdim=True).clamp(min=1) / len(mask)


def token_weights(mask: Tensor) -> Tensor:
    """Return the weights of the mean over all tokens of the batch (DAPO, eq. 8), (n, tokens)."""
    return mask / mask.sum().clamp(min=1)


def constant_weights(mask: Tensor, length: float) -> Tensor:
    """Return the weights of the mean over completions of the sum over tokens / a constant.

    The constant is usually the longest possible completion (Dr. GRPO, Liu et al. 2025); 1 gives the
    plain sum of REINFORCE. Shape (n, tokens).
    """
    return mask / (len(mask) * length)


def kl_estimate(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Estimate KL(policy ‖ reference) per token, from tokens sampled from the policy.

    k3 = e^d - 1 - d with d = reference - policy (Schulman 2020), in nats, shape as given:
    unbiased, never negative.

    Examples:
        >>> kl_estimate(torch.tensor([-1.0]), reference=torch.tensor([-3.0]))  # e^-2 - 1 + 2
        tensor([1.1353])
    """
    difference = reference - log_probs
    return difference.expm1() - difference


def completion_mask(tokens: Tensor, end_tokens: Tensor) -> Tensor:
    """Return 1 up to and including each row's first end token and 0 after it: float32, (n, tokens).

    `end_tokens`, shape (k,), may be empty.

    Examples:
        >>> completion_mask(torch.tensor([[5, 2, 7], [5, 6, 7]]), end_tokens=torch.tensor([2]))
        tensor([[1., 1., 0.],
                [1., 1., 1.]])
    """
    is_end = torch.isin(tokens, end_tokens)
    return (is_end.cumsum(dim=-1) - is_end.long() <= 0).float()
