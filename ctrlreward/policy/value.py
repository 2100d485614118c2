"""Values of tokens: the head that predicts them, what it learns from, and its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctrlreward.functional import advantages as formulas
from ctrlreward.functional import policy as losses
from ctrlreward.policy.across_ranks import pooled


@dataclass(frozen=True)
class Critic:
    """How values are learned and what they are used for.

    Args:
        gamma: How much a reward one token later is worth, in [0, 1].
        gae_lambda: Of generalised advantage estimation, in [0, 1].
        coef: Weight of the values' loss.
        clip: How far an update may take a value from what it was at sampling, in units of the
            reward; None: any.

    Raises:
        ValueError: A number out of range.
    """

    gamma: float = 1.0
    gae_lambda: float = 0.95
    coef: float = 0.1
    clip: float | None = 0.2

    def __post_init__(self) -> None:
        for name, share in (("gamma", self.gamma), ("gae_lambda", self.gae_lambda)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} = {share}: give a number in [0, 1]")
        if self.coef < 0:
            raise ValueError(f"value_coef = {self.coef}: give 0 or a positive number")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"value_clip = {self.clip}: give a positive number, or none")


class ValueHead(nn.Module):
    """The return expected before each token, linear in what reaches the output layer there.

    It is float32, expects 0 of everything until it has learned, and its gradient reaches the
    states.

    Args:
        width: Of the states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Values, float32, of the states' shape without their width."""
        values: Tensor = self.linear(states.float()).squeeze(-1)
        return values


@dataclass(frozen=True)
class Estimates:
    """What values were at sampling, and what they should be.

    Attributes:
        values: Shape (n, tokens).
        returns: Shape (n, tokens).
        mask: 1 on the tokens whose value is learned, shape (n, tokens).
    """

    values: Tensor
    returns: Tensor
    mask: Tensor

    def __getitem__(self, rows: Tensor) -> Estimates:
        """Those of some of the completions, by their places."""
        return Estimates(self.values[rows], self.returns[rows], self.mask[rows])

    @property
    def explained_variance(self) -> Tensor:
        """See `functional.policy.explained_variance`."""
        return losses.explained_variance(self.values, self.returns, self.mask)


def estimate(
    critic: Critic, rewards: Tensor, values: Tensor, mask: Tensor, whiten: bool
) -> tuple[Tensor, Estimates]:
    """Advantages of tokens, and what their values should be; a reward comes with the last token.

    Args:
        critic: Its gamma and lambda.
        rewards: NaN where a sample failed: its tokens have the advantage 0, take no part in
            whitening, and teach the values nothing. Shape (n,).
        values: At sampling, shape (n, tokens).
        mask: 1 on the completions' tokens, shape (n, tokens).
        whiten: Whether advantages get the mean 0 and the deviation 1; returns never do.

    Returns:
        Advantages, shape (n, tokens), and the estimates.
    """
    valid = mask * ~rewards.isnan()[:, None]
    at_end = formulas.rewards_at_end(torch.nan_to_num(rewards), mask)
    advantages = formulas.generalised_advantages(
        at_end, values, valid, critic.gamma, critic.gae_lambda
    )
    estimates = Estimates(values, advantages + values, valid)
    if whiten:
        everyones, _ = pooled(advantages[valid.bool()])
        advantages = formulas.whitened(advantages, valid, everyones)
    return advantages, estimates


def with_values(
    critic: Critic,
    terms: dict[str, Tensor],
    values: Tensor,
    estimates: Estimates,
    weights: Tensor,
) -> dict[str, Tensor]:
    """An update's terms with the values' loss in `loss`, and beside it without gradients.

    Args:
        critic: Its weight and clip.
        terms: Of `objectives.terms_of`.
        values: As they are now, with gradients, shape (n, tokens).
        estimates: Of the same tokens.
        weights: How much each token counts, shape (n, tokens).
    """
    costs = losses.value_loss(values, estimates.values, estimates.returns, critic.clip)
    loss = (weights * costs).sum()
    return {**terms, "loss": terms["loss"] + critic.coef * loss, "value_loss": loss.detach()}
