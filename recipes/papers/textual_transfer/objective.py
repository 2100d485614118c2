"""Objective of textual transfer: the losses of one batch, from the states of the generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ctrlreward.recipes.papers.textual_transfer.batches import TransferBatch
from ctrlreward.recipes.papers.textual_transfer.losses import (
    GeneratorLoss,
    critic_loss,
    discriminator_loss,
    generator_loss,
    language_loss,
    reconstruction_loss,
    wasserstein_gap,
)
from ctrlreward.recipes.papers.textual_transfer.networks import TransferNetworks
from ctrlreward.recipes.papers.textual_transfer.vocabulary import EOS, GO


class States(NamedTuple):
    """States of the generator over a batch of 2k sentences, k of each style.

    Attributes:
        content: z of each sentence, shape (2k, content_size).
        real: Over the words of each sentence in its own style, shape (2k, words + 2, width).
        fake: Over the generator's own words in the other style, same shape.
    """

    content: Tensor
    real: Tensor
    fake: Tensor

    def of_style(self, style: int) -> tuple[Tensor, Tensor]:
        """Return real states of a style and states of sentences transferred into it, k of each."""
        k = len(self.real) // 2
        return self.real[style * k :][:k], self.fake[(1 - style) * k :][:k]

    def detached(self) -> States:
        """Return the states without gradients, for the discriminators."""
        return States(*(states.detach() for states in self))


def unfold(networks: TransferNetworks, batch: TransferBatch, temperature: float) -> States:
    """Return the states of a batch; the encoder reads the locally shuffled words."""
    content = networks.encode(batch.noisy, batch.lengths, batch.styles)
    real = networks.unfold(batch.words, batch.styles, content)
    steps = real.shape[1] - 1
    fake = networks.unfold_self_fed(1 - batch.styles, content, steps, temperature)
    return States(content, real, fake)


def discriminator_losses(
    states: States, discriminators: nn.ModuleList, critics: nn.ModuleList
) -> dict[str, Tensor]:
    """Return eq. 3 of each style's discriminator and eq. 7 of each style's critic.

    Args:
        states: States without gradients.
        discriminators: Discriminators of style 0 and of style 1.
        critics: The second pair, or none.
    """
    losses = {}
    for style, discriminator in enumerate(discriminators):
        real, fake = states.of_style(style)
        loss = discriminator_loss(discriminator(real), discriminator(fake))
        losses[f"discriminator_{style}"] = loss
    for style, critic in enumerate(critics):
        real, fake = states.of_style(style)
        share = torch.rand(len(real), device=real.device, dtype=real.dtype)
        losses[f"critic_{style}"] = critic_loss(critic, real, fake, share)
    return losses


def adversarial_losses(
    states: States,
    discriminators: nn.ModuleList,
    critics: nn.ModuleList,
    form: GeneratorLoss,
) -> dict[str, Tensor]:
    """Return the parts of -eq. 3 and -eq. 7 that encoder and generator minimise, over both styles.

    Arguments are as in `discriminator_losses`, but for states with gradients and the form of eq. 3
    (see `losses.generator_loss`).
    """
    pairs = [states.of_style(style) for style in (0, 1)]
    parts = [
        generator_loss(discriminator(real), discriminator(fake), form)
        for discriminator, (real, fake) in zip(discriminators, pairs, strict=True)
    ]
    losses = {"adversarial": torch.stack(parts).sum()}
    if critics:
        gaps = [
            wasserstein_gap(critic(real), critic(fake))
            for critic, (real, fake) in zip(critics, pairs, strict=True)
        ]
        losses["critic"] = -torch.stack(gaps).sum()
    return losses


def reconstruction(networks: TransferNetworks, batch: TransferBatch, states: States) -> Tensor:
    """Return eq. 2, summed over the two styles."""
    return _reconstruction(networks, states.real, batch.words, batch.lengths)


def paraphrase(networks: TransferNetworks, batch: TransferBatch) -> Tensor:
    """Return eq. 5: the pairs of the batch, rewritten in either style."""
    count = len(batch.source_pairs)
    styles = torch.arange(2, device=batch.styles.device).repeat_interleave(count)
    u, v = batch.source_pairs.repeat(2, 1), batch.target_pairs.repeat(2, 1)
    content = networks.encode(u, batch.source_lengths.repeat(2), styles)
    states = networks.unfold(v, styles, content)
    return _reconstruction(networks, states, v, batch.target_lengths.repeat(2))


def transfer_losses(
    networks: TransferNetworks,
    batch: TransferBatch,
    states: States,
    language_models: Sequence[nn.Module] = (),
) -> dict[str, Tensor]:
    """Return eq. 4 and, with language models, eq. 6, over both styles.

    Both need the batch transferred by argmax, through which no gradient flows.

    Args:
        networks: Encoder and generator.
        batch: 2k sentences.
        states: Their states, for z.
        language_models: Frozen models of style 0 and of style 1.
    """
    others, steps = 1 - batch.styles, batch.words.shape[1] + 1
    written, counts = networks.write(others, states.content, steps)
    content = networks.encode(written, counts, others)
    back = networks.unfold(batch.words, batch.styles, content)
    losses = {"cycle": _reconstruction(networks, back, batch.words, batch.lengths)}
    if language_models:
        states_over = networks.unfold(written, others, states.content)
        logits, mask = networks.generator.logits(states_over[:, 1:]), _mask(written, counts)
        inputs, k = pad(written, (1, 0), value=GO), len(written) // 2
        halves = [(1, slice(0, k)), (0, slice(k, None))]  # sentences of style 0 are written in 1
        parts = [
            language_loss(language_models[style](inputs[rows]), logits[rows], mask[rows])
            for style, rows in halves
        ]
        losses["language"] = torch.stack(parts).sum()
    return losses


def _reconstruction(
    networks: TransferNetworks, states: Tensor, words: Tensor, lengths: Tensor
) -> Tensor:
    """Return the reconstruction loss of n / 2 sentences of each style, summed over the styles."""
    targets = pad(words, (0, 1)).scatter(1, lengths[:, None], EOS)
    logits = networks.generator.logits(states[:, 1:])
    # The mean over 2k sentences is half the sum of two means over k.
    return 2 * reconstruction_loss(logits, targets, _mask(words, lengths))


def _mask(words: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 for words and `<eos>`, 0 for padding, shape (n, words + 1)."""
    places = torch.arange(words.shape[1] + 1, device=words.device)
    return (places <= lengths[:, None]).float()
