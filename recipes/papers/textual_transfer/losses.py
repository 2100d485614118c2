"""Losses of textual transfer (Pang & Gimpel 2019, https://arxiv.org/abs/1810.11878, eqs. 2 to 7).

Each is over the sentences of one style t; the objective adds both styles. n sentences, T words and
one end each, V words in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, softplus

GeneratorLoss = Literal["minimax", "non_saturating"]


def reconstruction_loss(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return -log p_G(x | y, z), summed over words and averaged over sentences.

    Eq. 2 with z of x itself; eq. 4 with z of its transfer; eq. 5 with z of a paraphrase of x.

    Args:
        logits: Logits of each word given the true ones before it, shape (n, T + 1, V).
        targets: The words and `<eos>`, shape (n, T + 1).
        mask: 1 for words and `<eos>`, 0 for padding, same shape.
    """
    words = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (words * mask).sum() / len(targets)


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return eq. 3, -mean log D(h) - mean log(1 - D(h̃)), which D minimises.

    Args:
        real: Logits of D of states of sentences of its style, shape (n,).
        fake: Logits of D of states of sentences transferred into its style, shape (m,).
    """
    return softplus(-real).mean() + softplus(fake).mean()


def generator_loss(real: Tensor, fake: Tensor, form: GeneratorLoss) -> Tensor:
    """Return the adversarial loss that encoder and generator minimise.

    - `minimax`: minus eq. 3, as printed. Where D is sure of a fake, as early in training, its
      gradient vanishes.
    - `non_saturating`: -mean log D(h̃), with the same fixed point and the largest gradient there
      (Goodfellow et al. 2014, §3). Real states are not used: they should not look like fakes.

    Args:
        real: Logits of D of real states, shape (n,).
        fake: Logits of D of transferred states, shape (m,).
        form: One of the two.
    """
    if form == "minimax":
        return -discriminator_loss(real, fake)
    return binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


def language_loss(target: Tensor, logits: Tensor, mask: Tensor) -> Tensor:
    """Return eq. 6, the cross-entropy of the generator's words under a language model's.

    -Σ_w l(w) log g(w), summed over positions and averaged over sentences: l is the frozen language
    model of the style that the sentence was transferred into, g the generator.

    Args:
        target: log l at each position of the transferred sentences, shape (n, T + 1, V).
        logits: Logits of g at the same positions, same shape.
        mask: 1 for the positions of words and `<eos>`, shape (n, T + 1).
    """
    positions = -(target.exp() * logits.log_softmax(dim=-1)).sum(dim=-1)
    return (positions * mask).sum() / len(target)


def gradient_penalty(
    critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, share: Tensor
) -> Tensor:
    """Return the mean of (‖∇ D′(ĥ)‖₂ - 1)² at points ĥ between real and fake states (eq. 7).

    Args:
        critic: D′; states of shape (n, steps, width) → shape (n,).
        real: Real states, shape (n, steps, width).
        fake: Transferred states, same shape.
        share: ε of each pair, 0 to 1, shape (n,): ĥ = ε h + (1 - ε) h̃.
    """
    weight = share[:, None, None]
    between = (weight * real + (1 - weight) * fake).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


def critic_loss(
    critic: Callable[[Tensor], Tensor],
    real: Tensor,
    fake: Tensor,
    share: Tensor,
    penalty: float = 10.0,
) -> Tensor:
    """Return eq. 7, mean[D′(h̃) - D′(h)] + ξ · `gradient_penalty`, which D′ minimises.

    `penalty` is ξ, and the other arguments are as in `gradient_penalty`.
    """
    gap = wasserstein_gap(critic(real), critic(fake))
    return gap + penalty * gradient_penalty(critic, real, fake, share)


def wasserstein_gap(real: Tensor, fake: Tensor) -> Tensor:
    """Return mean D′(h̃) - mean D′(h), the part of eq. 7 that encoder and generator maximise.

    The penalty bounds the slope of D′ and is not part of it.

    Args:
        real: D′ of real states, shape (n,).
        fake: D′ of transferred states, shape (m,).
    """
    return fake.mean() - real.mean()
