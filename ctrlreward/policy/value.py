"""The critic: a value head, the returns it learns, its loss, and advantages per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctrlreward.arguments import checked_keywords, positive
from ctrlreward.functional import advantages as formulas
from ctrlreward.ranks import gather_values


@checked_keywords(
    lam="gae_lambda",
    vf_coef="coef",
    cliprange_value="clip",
)
@dataclass(frozen=True)
class Critic:
    """Advantage estimation with a value head, and how the head is trained.

    Only the baseline `"value"` (`ppo`) uses these.

    Args:
        gamma: Discount per token, in [0, 1].
        gae_lambda: λ of generalised advantage estimation, in [0, 1]; 1 uses only rewards, 0 only
            the next token's value.
        coef: Weight of the value loss, ≥ 0. Its gradient also reaches the adapter.
        clip: Largest change of a value from its value at sampling, in units of the reward; None
            for no clipping.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> Critic(gae_lambda=1.0, clip=None).gamma
        1.0
    """

    gamma: float = 1.0
    gae_lambda: float = 0.95
    coef: float = 0.1
    clip: float | None = 0.2

    def __post_init__(self) -> None:
        for name, number in (("gamma", self.gamma), ("gae_lambda", self.gae_lambda)):
            if not 0 <= number <= 1:
                raise ValueError(f"critic.{name} must be in [0, 1], got {number}")
        if self.coef < 0:
            raise ValueError(f"critic.coef must be 0 or more, got {self.coef}")
        positive("critic.clip", self.clip)


class ValueHead(nn.Module):
    """The expected return before each token, a float32 linear function of the last hidden state.

    It predicts 0 until it has been trained. Its gradient reaches the hidden states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return the values of hidden states of shape (..., width): float32, shape (...)."""
        values: Tensor = self.linear(states.float()).squeeze(-1)
        return values


@dataclass(frozen=True)
class Estimates:
    """Values at sampling, the returns to predict, and a mask of trained tokens, (n, tokens)."""

    values: Tensor
    returns: Tensor
    mask: Tensor

    def __getitem__(self, rows: Tensor) -> Estimates:
        """Select completions by row."""
        return Estimates(self.values[rows], self.returns[rows], self.mask[rows])


def estimate_advantages(
    critic: Critic, rewards: Tensor, values: Tensor, mask: Tensor, whiten: bool, credit: Tensor
) -> tuple[Tensor, Estimates]:
    """Compute the advantage and the return of each token.

    `credit` is the part of the reward assigned to each token; the rest is assigned to the
    last. The tokens of a failed completion, whose reward is NaN, get advantage 0 and are excluded
    from whitening and from the value loss. Returns are never whitened. Rewards have shape (n,), all
    others (n, tokens).
    """
    valid = mask * ~rewards.isnan()[:, None]
    credit = torch.nan_to_num(credit)
    rest = torch.nan_to_num(rewards) - credit.sum(dim=1)
    given = credit + formulas.rewards_at_end(rest, mask)
    advantages = formulas.generalised_advantages(
        given, values, valid, critic.gamma, critic.gae_lambda
    )
    estimates = Estimates(values, advantages + values, valid)
    if whiten:
        all_ranks, _ = gather_values(advantages[valid.bool()])
        advantages = formulas.whitened(advantages, valid, all_ranks)
    return advantages, estimates
