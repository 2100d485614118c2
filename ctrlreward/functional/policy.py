"""Policy gradients on completions: losses, importance ratios, KL estimates, masks.

Advantages have shape (n,), one per completion, or (n, tokens). Log-probabilities and the mask have
shape (n, tokens). The mask is 1 on a completion's tokens up to and including its end token.

A loss is the sum of weights (`*_weights`) x costs (`clipped_surrogate`, `score_function`). The
weights do not depend on the costs, so losses of microbatches add up to the loss of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Importance ratios


def token_ratio(log_probs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Compute the importance ratio of each token (PPO, Schulman et al. 2017, eq. 6), (n, tokens).

    In (0, ∞); 1 where masked. `old` are log-probabilities under the policy that sampled.

    Examples:
        >>> log_probs, old = torch.tensor([[0.4, 0.4]]).log(), torch.tensor([[0.2, 0.2]]).log()
        >>> token_ratio(log_probs, old, mask=torch.tensor([[1, 0]])).round(decimals=3)
        tensor([[2., 1.]])
    """
    return ((log_probs - old) * mask).exp()


def sequence_ratio(log_probs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Compute the ratio of completions to the power 1 / length (GSPO, Zheng et al. 2025, eq. 7).

    Shape (n, tokens): the completion's ratio at each of its tokens.

    Examples:
        >>> log_probs, old = torch.tensor([[0.4, 0.1]]).log(), torch.tensor([[0.1, 0.1]]).log()
        >>> sequence_ratio(log_probs, old, mask=torch.ones(1, 2)).round(decimals=3)
        tensor([[2., 2.]])
    """
    return sequence_mean(log_probs - old, mask).exp()[:, None].expand_as(log_probs)


# Cost of each token


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip: tuple[float, float] = (0.2, 0.2)
) -> Tensor:
    """Compute -min(ratio x advantage, clipped ratio x advantage) (PPO, eq. 7), shape (n, tokens).

    Advantages have shape (n,) or (n, tokens). `clip` is how far the ratio may go below and above 1
    before the gradient is cut off. A larger upper bound lets unlikely tokens grow (clip-higher of
    DAPO, Yu et al. 2025, eq. 10).

    Examples:
        >>> clipped_surrogate(torch.tensor([[1.5, 0.5]]), advantages=torch.tensor([1.0]))
        tensor([[-1.2000, -0.5000]])
    """
    lower, upper = clip
    advantage = advantages.view(len(advantages), -1)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - lower, 1 + upper) * advantage)


def is_clipped(ratio: Tensor, advantages: Tensor, clip: tuple[float, float] = (0.2, 0.2)) -> Tensor:
    """Return True where the clip of `clipped_surrogate` removes the gradient, shape (n, tokens).

    Examples:
        >>> is_clipped(torch.tensor([[1.5, 0.5]]), advantages=torch.tensor([1.0]))
        tensor([[ True, False]])
    """
    lower, upper = clip
    advantage = advantages.view(len(advantages), -1)
    return ((ratio > 1 + upper) & (advantage > 0)) | ((ratio < 1 - lower) & (advantage < 0))


def score_function(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Compute -advantage x log-probability (REINFORCE, Williams 1992), shape (n, tokens).

    Only valid for tokens sampled from the current policy: there is no ratio to an older one.

    Examples:
        >>> score_function(torch.tensor([[-0.5, -2.0]]), advantages=torch.tensor([2.0]))
        tensor([[1., 4.]])
    """
    return -advantages.view(len(advantages), -1) * log_probs


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float | None = 0.2) -> Tensor:
    """Compute half the squared error of values, shape (n, tokens).

    With a clip, in units of the reward, it is the larger of this error and the error of the value
    clipped to within `clip` of `old`, the prediction at sampling, as in the code of the authors of
    PPO (Schulman et al. 2017).

    Examples:
        >>> values, old = torch.tensor([[3.0]]), torch.tensor([[1.0]])
        >>> value_loss(values, old, returns=torch.tensor([[2.0]]), clip=0.5)  # max(1², 0.5²) / 2
        tensor([[0.5000]])
    """
    errors = (values - returns) ** 2
    if clip is not None:
        clipped = old + (values - old).clamp(-clip, clip)
        errors = torch.maximum(errors, (clipped - returns) ** 2)
    return errors / 2


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Compute 1 - Var(returns - values) / Var(returns) over unmasked tokens, a scalar ≤ 1.

    1 if the values are right up to a constant, NaN if all returns are equal.

    Examples:
        >>> values, returns = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]])
        >>> explained_variance(values, returns, mask=torch.ones(1, 2))  # 1 - 0.25 / 1
        tensor(0.7500)
    """
    kept = mask.bool()
    spread = returns[kept].var(correction=0)
    unexplained = (returns - values)[kept].var(correction=0)
    return torch.where(spread > 0, 1 - unexplained / spread, torch.nan)


# Weight of each token: loss = (weights x costs).sum()


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
    """Return the weights of the mean over all tokens of the batch (DAPO, eq. 8), (n, tokens).

    Examples:
        >>> token_weights(torch.tensor([[1, 1, 1], [1, 0, 0]]))
        tensor([[0.2500, 0.2500, 0.2500],
                [0.2500, 0.0000, 0.0000]])
    """
    return mask / mask.sum().clamp(min=1)


def constant_weights(mask: Tensor, length: float) -> Tensor:
    """Return the weights of the mean over completions of the sum over tokens / a constant.

    The constant is usually the longest possible completion (Dr. GRPO, Liu et al. 2025); 1 gives the
    plain sum of REINFORCE.

    Examples:
        >>> constant_weights(torch.tensor([[1, 1], [1, 0]]), length=4)
        tensor([[0.1250, 0.1250],
                [0.1250, 0.0000]])
    """
    return mask / (len(mask) * length)


# KL divergence from a reference, token by token (Schulman 2020, "Approximating KL divergence")


def kl_k2(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Estimate by k2 = (policy - reference)² / 2, in nats: biased, never negative.

    The mean of its gradient over tokens of the policy is the gradient of KL(policy ‖ reference).

    Examples:
        >>> kl_k2(torch.tensor([-1.0]), reference=torch.tensor([-3.0]))
        tensor([2.])
    """
    return (log_probs - reference) ** 2 / 2


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


def kl_k1_penalty(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Compute k1 = policy - reference, in nats, with the gradient of k2, shape as given.

    k1 is unbiased and of either sign, but over tokens of the policy its gradient has mean 0.

    Examples:
        >>> log_probs = torch.tensor([-1.0], requires_grad=True)
        >>> penalty = kl_k1_penalty(log_probs, reference=torch.tensor([-3.0])).sum()
        >>> penalty.item(), torch.autograd.grad(penalty, log_probs)
        (2.0, (tensor([2.]),))
    """
    k2 = kl_k2(log_probs, reference)
    return (log_probs - reference).detach() + (k2 - k2.detach())


# Masks and shapes


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row's unmasked values, shape (n,); 0 for a row without any.

    Examples:
        >>> sequence_mean(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1, 1], [1, 0]]))
        tensor([2., 5.])
    """
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


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
