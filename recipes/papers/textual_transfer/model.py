"""Networks and losses of textual transfer, Pang & Gimpel (2019), §4, eqs. 2 to 7.

https://arxiv.org/abs/1810.11878. A loss is over the sentences of both styles; V is the number of
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from ctrlreward.completion import eval_mode
from ctrlreward.recipes.papers.textual_transfer.data import EOS, GO, PAD, UNK, TransferBatch

GeneratorLoss = Literal["minimax", "non_saturating"]

_PENALTY = 10.0  # ξ of eq. 7


class TransferNetworks(nn.Module):
    """Encoder E(x, y) → z and generator G(y, z) → x, two GRUs over one table of word embeddings.

    The encoder reads a sentence backwards from the state [y ; 0]; z is the last `content_size`
    numbers of its last state. The generator starts from [y ; z]. Embeddings start with norm 1. A
    state has `style_size + content_size` numbers (width); dropout is of both GRUs' inputs and
    before the output layer.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        style_size: int,
        content_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        width = style_size + content_size
        self.content_size = content_size
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.embedding.weight.data = F.normalize(self.embedding.weight.data)
        self.encoder_style = nn.Embedding(2, style_size)
        self.encoder = nn.GRU(embedding_size, width, batch_first=True)
        self.generator_style = nn.Embedding(2, style_size)
        self.generator = nn.GRU(embedding_size, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def encode(self, words: Tensor, lengths: Tensor, styles: Tensor) -> Tensor:
        """Return z, shape (n, content_size), which does not depend on the padding.

        Args:
            words: Ids, padded on the right, shape (n, words).
            lengths: Number of words of each sentence, shape (n,); an empty one is read as its first
                id.
            styles: Style of each sentence, 0 or 1, shape (n,).
        """
        embedded, last = self.embedding(words), lengths.clamp(min=1) - 1
        places = torch.arange(words.shape[1], device=words.device)
        backwards = (last[:, None] - places) % words.shape[1]
        inputs = embedded.gather(1, backwards[..., None].expand_as(embedded))
        start = F.pad(self.encoder_style(styles), (0, self.content_size))
        states, _ = self.encoder(self.dropout(inputs), start[None])
        rows = torch.arange(len(words), device=words.device)
        return states[rows, last, -self.content_size :]

    def start(self, styles: Tensor, content: Tensor) -> Tensor:
        """Return the generator's first states [y ; z], shape (n, width)."""
        return torch.cat([self.generator_style(styles), content], dim=1)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of the word after each state, shape (..., V)."""
        logits: Tensor = self.output(self.dropout(states))
        return logits

    def unfold(self, words: Tensor, styles: Tensor, content: Tensor) -> Tensor:
        """Return the generator's states over given words, shape (n, words + 2, width).

        The logits of the i-th word follow from state i + 1.
        """
        start = self.start(styles, content)
        inputs = self.embedding(F.pad(words, (1, 0), value=GO))
        states, _ = self.generator(self.dropout(inputs), start[None])
        return torch.cat([start[:, None], states], dim=1)

    def unfold_self_fed(
        self, styles: Tensor, content: Tensor, steps: int, temperature: float
    ) -> Tensor:
        """Return the generator's states over its own words, shape (n, steps + 1, width).

        A word is fed back as the mean embedding under a Gumbel-softmax of this temperature, or
        under the plain distribution where it is 0.
        """
        vectors = self.embedding.weight
        states = [self.start(styles, content)]
        inputs = vectors[GO].expand(len(content), 1, -1)
        for _ in range(steps):
            _, state = self.generator(self.dropout(inputs), states[-1][None])
            states.append(state[0])
            if len(states) <= steps:
                logits = self.logits(state[0])
                words = F.gumbel_softmax(logits, temperature) if temperature else logits.softmax(-1)
                inputs = (words @ vectors)[:, None]
        return torch.stack(states, dim=1)

    @torch.no_grad()
    def write(self, styles: Tensor, content: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest words one by one, without gradients and without dropout.

        Padding, `<go>` and `<unk>` are never written.

        Returns:
            Ids, padded by `<eos>`, shape (n, up to `steps`), and number of words of each, (n,).
        """
        state = self.start(styles, content)[None]
        words, columns = torch.full_like(styles, GO), []
        open_ = torch.ones_like(words, dtype=torch.bool)
        with eval_mode(self):
            for _ in range(steps):
                _, state = self.generator(self.embedding(words)[:, None], state)
                logits = self.logits(state[0])
                logits[:, [PAD, GO, UNK]] = -torch.inf
                words = logits.argmax(dim=-1)
                open_ = open_ & (words != EOS)
                if not open_.any():
                    break
                columns.append(torch.where(open_, words, EOS))
        ids = torch.stack(columns or [torch.full_like(words, EOS)], dim=1)
        return ids, (ids != EOS).sum(dim=1)


class StateDiscriminator(nn.Module):
    """TextCNN over the states of a generator, one logit a sequence; higher is a real one.

    `widths` are the filters' widths, in states, with `filters` of each; dropout is of the
    features.
    """

    def __init__(
        self, width: int, widths: Sequence[int], filters: int = 128, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.convolutions = nn.ModuleList(nn.Linear(width * size, filters) for size in self.widths)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(filters * len(self.widths), 1)

    def forward(self, states: Tensor) -> Tensor:
        """Return one logit a sequence, shape (n,), of states of shape (n, steps, width)."""
        states = F.pad(states, (0, 0, 0, max(0, max(self.widths) - states.shape[1])))
        features = []
        for size, convolution in zip(self.widths, self.convolutions, strict=True):
            last = states.shape[1] - size + 1
            windows = torch.cat([states[:, i : i + last] for i in range(size)], dim=2)
            features.append(F.leaky_relu(convolution(windows)).amax(dim=1))
        return self.output(self.dropout(torch.cat(features, dim=1)))[:, 0]


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return eq. 3 of one style, -mean log D(h) - mean log(1 - D(h̃)), which D minimises.

    `real`, shape (n,), are logits of D of states of sentences of its style; `fake`, shape (m,), of
    states of sentences transferred into it.
    """
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(real: Tensor, fake: Tensor, form: GeneratorLoss) -> Tensor:
    """Return the adversarial loss that encoder and generator minimise.

    - `minimax`: minus eq. 3, as printed. Where D is sure of a fake, as early in training, its
      gradient vanishes.
    - `non_saturating`: -mean log D(h̃), with the same fixed point and the largest gradient there
      (Goodfellow et al. 2014, §3).
    """
    return -discriminator_loss(real, fake) if form == "minimax" else F.softplus(-fake).mean()


def critic_loss(
    critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor, share: Tensor
) -> Tensor:
    """Return eq. 7 of one style, mean[D′(h̃) - D′(h)] + ξ · `gradient_penalty`; D′ minimises it."""
    gap = critic(fake).mean() - critic(real).mean()
    return gap + _PENALTY * gradient_penalty(critic, real, fake, share)


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
    """Return eq. 3 of each style's discriminator and eq. 7 of each style's critic, if any.

    No gradient flows into the states.
    """
    states = States(*(each.detach() for each in states))
    losses = {}
    for style, discriminator in enumerate(discriminators):
        losses[f"discriminator_{style}"] = discriminator_loss(
            *map(discriminator, states.of_style(style))
        )
    for style, critic in enumerate(critics):
        real, fake = states.of_style(style)
        share = torch.rand(len(real), device=real.device, dtype=real.dtype)
        losses[f"critic_{style}"] = critic_loss(critic, real, fake, share)
    return losses


def adversarial_losses(
    states: States, discriminators: nn.ModuleList, critics: nn.ModuleList, form: GeneratorLoss
) -> dict[str, Tensor]:
    """Return the parts of -eq. 3 and -eq. 7 that encoder and generator minimise.

    The penalty of eq. 7 bounds the slope of D′, and is not among them.
    """
    parts = []
    for style, discriminator in enumerate(discriminators):
        real, fake = map(discriminator, states.of_style(style))
        parts.append(generator_loss(real, fake, form))
    losses = {"adversarial": torch.stack(parts).sum()}
    if critics:
        pairs = [map(critic, states.of_style(style)) for style, critic in enumerate(critics)]
        gaps = [fake.mean() - real.mean() for real, fake in pairs]
        losses["critic"] = -torch.stack(gaps).sum()
    return losses


def reconstruction(
    networks: TransferNetworks, states: Tensor, words: Tensor, lengths: Tensor
) -> Tensor:
    """Return -log p_G(x | y, z), summed over words and `<eos>`, averaged over sentences of a style.

    Eq. 2 with z of x itself, eq. 4 with z of its transfer, eq. 5 with z of a paraphrase. The
    generator's states over the words have shape (n, words + 2, width), n / 2 of each style; words
    are padded on the right, shape (n, words), and lengths shape (n,).
    """
    targets = F.pad(words, (0, 1)).scatter(1, lengths[:, None], EOS)
    logits = networks.logits(states[:, 1:]).transpose(1, 2)
    losses = F.cross_entropy(logits, targets, reduction="none")
    # The mean over 2k sentences is half the sum of two means over k.
    return 2 * ((losses * _mask(words, lengths)).sum() / len(targets))


def paraphrase(networks: TransferNetworks, batch: TransferBatch) -> Tensor:
    """Return eq. 5: the pairs ⟨u, v⟩ of the batch, v written in either style from z of u."""
    count = len(batch.source_pairs)
    styles = torch.arange(2, device=batch.styles.device).repeat_interleave(count)
    u, v = batch.source_pairs.repeat(2, 1), batch.target_pairs.repeat(2, 1)
    content = networks.encode(u, batch.source_lengths.repeat(2), styles)
    states = networks.unfold(v, styles, content)
    return reconstruction(networks, states, v, batch.target_lengths.repeat(2))


def transfer_losses(
    networks: TransferNetworks,
    batch: TransferBatch,
    content: Tensor,
    language_models: Sequence[nn.Module] = (),
) -> dict[str, Tensor]:
    """Return eq. 4 and, with the frozen language models of both styles, eq. 6.

    Both need the batch transferred by argmax, through which no gradient flows. Eq. 6 is
    -Σ_w l(w) log g(w), summed over positions and averaged over the sentences of a style: l is the
    language model of the style that the sentence was transferred into, g the generator.
    """
    others, steps = 1 - batch.styles, batch.words.shape[1] + 1
    written, counts = networks.write(others, content, steps)
    back = networks.encode(written, counts, others)
    states = networks.unfold(batch.words, batch.styles, back)
    losses = {"cycle": reconstruction(networks, states, batch.words, batch.lengths)}
    if language_models:
        states = networks.unfold(written, others, content)
        likelihoods = networks.logits(states[:, 1:]).log_softmax(dim=-1)
        inputs, mask = F.pad(written, (1, 0), value=GO), _mask(written, counts)
        k = len(written) // 2
        parts = []
        for style, rows in ((1, slice(0, k)), (0, slice(k, None))):  # style 0 is written in 1
            expected = language_models[style](inputs[rows]).exp() * likelihoods[rows]
            parts.append((-expected.sum(dim=-1) * mask[rows]).sum() / k)
        losses["language"] = torch.stack(parts).sum()
    return losses


def writer_losses(
    networks: TransferNetworks,
    batch: TransferBatch,
    states: States,
    discriminators: nn.ModuleList,
    critics: nn.ModuleList,
    language_models: Sequence[nn.Module],
    form: GeneratorLoss,
    lambdas: Mapping[str, float],
) -> dict[str, Tensor]:
    """Return the losses of encoder and generator that have a weight, eqs. 2 to 7, unweighted."""
    losses = {"reconstruction": reconstruction(networks, states.real, batch.words, batch.lengths)}
    losses |= adversarial_losses(states, discriminators, critics, form)
    if lambdas["paraphrase"]:
        losses["paraphrase"] = paraphrase(networks, batch)
    if lambdas["cycle"] or lambdas["language"]:
        losses |= transfer_losses(networks, batch, states.content, language_models)
    return {name: loss for name, loss in losses.items() if lambdas[name]}


def _mask(words: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 for words and `<eos>`, 0 for padding, shape (n, words + 1)."""
    places = torch.arange(words.shape[1] + 1, device=words.device)
    return (places <= lengths[:, None]).float()


@torch.no_grad()
def transferred(
    networks: TransferNetworks,
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[str],
    targets: Sequence[int],
    max_words: int,
    batch_size: int = 256,
) -> list[str]:
    """Return n sentences of the other styles in the target styles (0 or 1), written greedily."""
    device = networks.embedding.weight.device
    texts: list[str] = []
    for first in range(0, len(sentences), batch_size):
        rows = slice(first, first + batch_size)
        encoded = tokenizer(list(sentences[rows])).input_ids
        words = [torch.tensor(ids or [UNK], device=device) for ids in encoded]
        lengths = torch.tensor([*map(len, words)], device=device)
        styles = torch.tensor(targets[rows], device=device)
        with eval_mode(networks):
            padded = pad_sequence(words, batch_first=True, padding_value=PAD)
            content = networks.encode(padded, lengths, 1 - styles)
            ids, counts = networks.write(styles, content, max_words)
        for row, count in zip(ids.tolist(), counts.tolist(), strict=True):
            texts.append(str(tokenizer.decode(row[:count], clean_up_tokenization_spaces=False)))
    return texts
