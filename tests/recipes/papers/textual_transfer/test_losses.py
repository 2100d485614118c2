"""Eqs. 3 and 7 against plain loops in float64, and the gradients of eq. 7 against differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ctrlreward.recipes.papers.textual_transfer.losses import (
    critic_loss,
    discriminator_loss,
    generator_loss,
    gradient_penalty,
    wasserstein_gap,
)
from ctrlreward.recipes.papers.textual_transfer.networks import StateDiscriminator

SEEDS = st.integers(0, 2**31)
SIZES = st.integers(1, 4)


def draw(seed: int, *shapes: tuple[int, ...], scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator).double() for shape in shapes]


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def differences(loss: Callable[[], Tensor], values: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences of a loss in each of the values."""
    flat, slopes = values.data.view(-1), torch.zeros_like(values).view(-1)
    for i in range(len(flat)):
        kept = flat[i].item()
        flat[i] = kept + step
        above = loss().item()
        flat[i] = kept - step
        slopes[i] = (above - loss().item()) / (2 * step)
        flat[i] = kept
    return slopes.view_as(values)


def smooth(seed: int, width: int) -> nn.Module:
    """A critic without kinks."""
    torch.manual_seed(seed)
    layers = nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 1)

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers).double()

        def forward(self, states: Tensor) -> Tensor:
            return self.layers(states).sum(dim=(1, 2))

    return Critic()


# Values


@given(SEEDS, SIZES, SIZES, st.sampled_from([1.0, 50.0]))
def test_adversarial_losses_are_mean_logarithms(seed: int, n: int, m: int, scale: float) -> None:
    real, fake = draw(seed, (n,), (m,), scale=scale)
    says_real = sum(log_sigmoid(x) for x in real.tolist()) / n
    says_fake = sum(log_sigmoid(-x) for x in fake.tolist()) / m
    fooled = sum(log_sigmoid(x) for x in fake.tolist()) / m
    loss = discriminator_loss(real, fake).item()
    assert loss == pytest.approx(-says_real - says_fake, abs=1e-6)
    assert generator_loss(real, fake, "minimax").item() == pytest.approx(-loss, abs=1e-6)
    assert generator_loss(real, fake, "non_saturating").item() == pytest.approx(-fooled, abs=1e-6)


@given(SEEDS, SIZES, SIZES, SIZES, st.sampled_from([0.0, 1.0, 10.0]))
def test_the_penalty_is_that_of_numerical_slopes(
    seed: int, n: int, steps: int, width: int, penalty: float
) -> None:
    real, fake = draw(seed, (n, steps, width), (n, steps, width))
    share = torch.rand(n, generator=torch.Generator().manual_seed(seed)).double()
    critic, expected = smooth(seed, width), 0.0
    for i in range(n):
        between = share[i] * real[i] + (1 - share[i]) * fake[i]
        slope = differences(lambda x=between: critic(x[None])[0], between)
        expected += (math.sqrt((slope**2).sum().item()) - 1) ** 2 / n
    assert gradient_penalty(critic, real, fake, share).item() == pytest.approx(expected, abs=1e-6)
    gap = (critic(fake).sum() - critic(real).sum()).item() / n
    assert wasserstein_gap(critic(real), critic(fake)).item() == pytest.approx(gap, abs=1e-6)
    loss = critic_loss(critic, real, fake, share, penalty).item()
    assert loss == pytest.approx(gap + penalty * expected, abs=1e-6 * (1 + penalty))


def test_a_flat_critic_has_a_penalty_of_one_and_finite_gradients() -> None:
    critic = nn.Linear(2, 1).double()
    nn.init.zeros_(critic.weight)
    real, fake = draw(0, (3, 2, 2), (3, 2, 2))
    loss = gradient_penalty(lambda states: critic(states).sum((1, 2)), real, fake, real[:, 0, 0])
    loss.backward()
    assert loss.item() == 1.0
    assert critic.weight.grad is not None
    assert critic.weight.grad.isfinite().all()


# Gradients


@pytest.mark.parametrize("kind", ["smooth", "states"])
def test_gradients_of_the_critics_loss_are_central_differences(kind: str) -> None:
    """Through the penalty, the gradient of a gradient."""
    torch.manual_seed(3)
    states = StateDiscriminator(3, (1, 2, 3), filters=2, dropout=0.0).double()
    critic = smooth(3, 3) if kind == "smooth" else states
    real, fake = draw(3, (4, 5, 3), (4, 5, 3))
    (share,) = draw(4, (4,))
    share = share.sigmoid()

    def loss() -> Tensor:
        return critic_loss(critic, real, fake, share)

    for parameter in critic.parameters():
        (slope,) = torch.autograd.grad(loss(), parameter, materialize_grads=True)
        assert torch.allclose(slope, differences(loss, parameter), atol=1e-6, rtol=1e-6)
