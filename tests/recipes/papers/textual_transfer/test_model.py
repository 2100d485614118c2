"""The objective of a batch against sentences on their own, with GRU, TextCNN and sums by loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from ctrlreward.recipes.papers.textual_transfer.data import EOS, GO, PAD, UNK, TransferBatch
from ctrlreward.recipes.papers.textual_transfer.model import (
    StateDiscriminator,
    TransferNetworks,
    adversarial_losses,
    discriminator_losses,
    gradient_penalty,
    paraphrase,
    reconstruction,
    transfer_losses,
    unfold,
)
from ctrlreward.recipes.papers.textual_transfer.train import StyleLanguageModel

WORDS, EMBEDDING, STYLE, CONTENT = 9, 3, 2, 4
Sentence = list[int]

few = settings(max_examples=15)  # the twins take a tenth of a second


def networks_of(seed: int) -> TransferNetworks:
    """Networks that write sentences of several lengths."""
    torch.manual_seed(seed)
    networks = TransferNetworks(WORDS, EMBEDDING, STYLE, CONTENT, dropout=0.5).double().eval()
    for weights in networks.parameters():
        weights.data *= 2
    return networks


def rows_of(sentences: Sequence[Sentence]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(ids) for ids in sentences])
    longest = max(lengths.tolist())
    rows = [ids + [PAD] * (longest - len(ids)) for ids in sentences]
    return torch.tensor(rows), lengths


def sentences_of(seed: int, count: int, longest: int) -> list[Sentence]:
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=draws).tolist()
    return [torch.randint(UNK, WORDS, (n,), generator=draws).tolist() for n in lengths]


def batch_of(seed: int, k: int, longest: int, pairs: int = 2) -> TransferBatch:
    sentences = sentences_of(seed, 2 * k, longest)
    words, lengths = rows_of(sentences)
    noisy, _ = rows_of([ids[1:] + ids[:1] for ids in sentences])
    source, source_lengths = rows_of(sentences_of(seed + 1, pairs, 4))
    target, target_lengths = rows_of(sentences_of(seed + 2, pairs, 5))
    styles = torch.tensor([0] * k + [1] * k)
    return TransferBatch(
        words, noisy, lengths, styles, source, target, source_lengths, target_lengths
    )


def row(words: Tensor, lengths: Tensor, i: int) -> Sentence:
    return words[i, : lengths[i]].tolist()


# The paper's networks for one sentence


def gru(cell: nn.GRU, word: Tensor, state: Tensor) -> Tensor:
    return cell(word[None], state[None])[0][0]


def encode(networks: TransferNetworks, ids: Sentence, style: int) -> Tensor:
    state = torch.cat([networks.encoder_style.weight[style], torch.zeros(CONTENT).double()])
    for word in reversed(ids):
        state = gru(networks.encoder, networks.embedding.weight[word], state)
    return state[-CONTENT:]


def start(networks: TransferNetworks, style: int, content: Tensor) -> Tensor:
    return torch.cat([networks.generator_style.weight[style], content])


def nll(networks: TransferNetworks, ids: Sentence, style: int, content: Tensor) -> Tensor:
    """-log p_G of a sentence and its end."""
    state, loss = start(networks, style, content), torch.zeros(()).double()
    for word, following in pairwise([GO, *ids, EOS]):
        state = gru(networks.generator, networks.embedding.weight[word], state)
        loss = loss - networks.output(state).log_softmax(0)[following]
    return loss


def transfer(networks: TransferNetworks, style: int, content: Tensor, steps: int) -> Sentence:
    """The likeliest words up to the end, none of them reserved."""
    state, word, ids = start(networks, style, content), GO, []
    for _ in range(steps):
        state = gru(networks.generator, networks.embedding.weight[word], state)
        logits = networks.output(state).tolist()
        word = max((EOS, *range(UNK + 1, WORDS)), key=lambda w: logits[w])
        if word == EOS:
            break
        ids.append(word)
    return ids


def states_over(
    networks: TransferNetworks, ids: Sentence | None, style: int, content: Tensor, steps: int
) -> Tensor:
    """States with words fed in, or with the expected embedding of the generator's own words."""
    vectors = networks.embedding.weight
    states, word = [start(networks, style, content)], vectors[GO]
    for i in range(steps):
        states.append(gru(networks.generator, word, states[-1]))
        if ids is None:
            word = networks.output(states[-1]).softmax(0) @ vectors
        else:
            word = vectors[(ids + [PAD] * steps)[i]]
    return torch.stack(states)


def text_cnn(network: StateDiscriminator, states: Tensor) -> Tensor:
    missing = max(0, max(network.widths) - len(states))
    states, features = torch.cat([states, states.new_zeros(missing, states.shape[1])]), []
    for size, convolution in zip(network.widths, network.convolutions, strict=True):
        windows = [states[i : i + size].reshape(-1) for i in range(len(states) - size + 1)]
        features.append(torch.stack([leaky_relu(convolution(w)) for w in windows]).max(0)[0])
    return network.output(torch.cat(features))[0]


def assert_same(networks: nn.Module, losses: dict[str, Tensor], twins: dict[str, Tensor]) -> None:
    """Values and all gradients agree within 1e-6."""
    assert losses.keys() == twins.keys()
    parameters = list(networks.parameters())
    for name, loss in losses.items():
        assert loss.item() == pytest.approx(twins[name].item(), abs=1e-6), name
        slopes, own = (
            torch.autograd.grad(x, parameters, retain_graph=True, materialize_grads=True)
            for x in (loss, twins[name])
        )
        for slope, twin in zip(slopes, own, strict=True):
            assert torch.allclose(slope, twin, atol=1e-6, rtol=0), name


# Batches


@few
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 6))
def test_losses_of_a_batch_are_those_of_its_sentences(seed: int, k: int, longest: int) -> None:
    networks, batch = networks_of(seed), batch_of(seed, k, longest)
    torch.manual_seed(seed)
    models = [
        StyleLanguageModel(WORDS, 3, 4, 0.0).double().eval().requires_grad_(False) for _ in "01"
    ]
    states = unfold(networks, batch, temperature=0.0)
    steps = batch.words.shape[1] + 1
    twins = dict.fromkeys(("reconstruction", "cycle", "language", "paraphrase"), torch.tensor(0.0))
    for i, style in enumerate(batch.styles.tolist()):
        ids, other = row(batch.words, batch.lengths, i), 1 - style
        content = encode(networks, row(batch.noisy, batch.lengths, i), style)
        twins["reconstruction"] = twins["reconstruction"] + nll(networks, ids, style, content) / k
        written = transfer(networks, other, content, steps)
        # A sentence without words is read as its end.
        again = encode(networks, written or [EOS], other)
        twins["cycle"] = twins["cycle"] + nll(networks, ids, style, again) / k
        said = models[other](torch.tensor([[GO, *written]]))[0].exp()
        over = states_over(networks, written, other, content, len(written) + 1)[1:]
        own = networks.output(over).log_softmax(-1)
        twins["language"] = twins["language"] - (said * own).sum() / k
    for i in range(len(batch.source_pairs)):
        u = row(batch.source_pairs, batch.source_lengths, i)
        v = row(batch.target_pairs, batch.target_lengths, i)
        for style in (0, 1):
            loss = nll(networks, v, style, encode(networks, u, style))
            twins["paraphrase"] = twins["paraphrase"] + loss / len(batch.source_pairs)
    losses = {
        "reconstruction": reconstruction(networks, states.real, batch.words, batch.lengths),
        **transfer_losses(networks, batch, states.content, models),
        "paraphrase": paraphrase(networks, batch),
    }
    assert_same(networks, losses, twins)


@pytest.mark.parametrize("form", ["minimax", "non_saturating"])
@few
@given(seed=st.integers(0, 2**31), k=st.integers(1, 3), longest=st.integers(1, 6))
def test_each_discriminator_sees_its_style_and_what_is_transferred_into_it(
    form: str, seed: int, k: int, longest: int
) -> None:
    networks, batch = networks_of(seed), batch_of(seed, k, longest)
    width = STYLE + CONTENT
    pairs = [
        [StateDiscriminator(width, widths, filters=2).double().eval() for _ in "01"]
        for widths in ((3, 4, 5), (1, 2, 3))
    ]
    steps = batch.words.shape[1] + 1
    real: dict[int, list[Tensor]] = {0: [], 1: []}
    fake: dict[int, list[Tensor]] = {0: [], 1: []}
    for i, style in enumerate(batch.styles.tolist()):
        ids = row(batch.words, batch.lengths, i)
        content = encode(networks, row(batch.noisy, batch.lengths, i), style)
        real[style].append(states_over(networks, ids, style, content, steps))
        fake[1 - style].append(states_over(networks, None, 1 - style, content, steps))
    twins, total, gaps = {}, torch.tensor(0.0), torch.tensor(0.0)
    torch.manual_seed(seed)
    for t, discriminator in enumerate(pairs[0]):
        says_real, says_fake = (
            torch.stack([text_cnn(discriminator, states) for states in each[t]]).sigmoid()
            for each in (real, fake)
        )
        loss = -says_real.log().mean() - (1 - says_fake).log().mean()
        total = total - (loss if form == "minimax" else says_fake.log().mean())
        twins[f"discriminator_{t}"] = loss
    for t, critic in enumerate(pairs[1]):
        share = torch.rand(k, dtype=torch.double)
        says_real, says_fake = (
            torch.stack([text_cnn(critic, states) for states in each[t]]).mean()
            for each in (real, fake)
        )
        points = torch.stack(real[t]).detach(), torch.stack(fake[t]).detach()
        penalty = gradient_penalty(critic, *points, share)  # its twin is below
        twins[f"critic_{t}"] = says_fake - says_real + 10 * penalty  # ξ of the paper
        gaps = gaps + says_fake - says_real
    states = unfold(networks, batch, temperature=0.0)
    torch.manual_seed(seed)
    judged = discriminator_losses(states, *pairs)
    assert_same(nn.ModuleList(pairs[0] + pairs[1]), judged, twins)
    aims = adversarial_losses(states, *pairs, form)
    assert_same(networks, aims, {"adversarial": total, "critic": -gaps})
    assert states.fake.requires_grad


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_the_penalty_is_that_of_the_slopes_between(
    seed: int, n: int, steps: int, width: int
) -> None:
    """Of a · ‖h‖² / 2, whose slope at a point is a times the point; also by the critic's weight."""
    draws = torch.Generator().manual_seed(seed)
    real, fake = (torch.randn((n, steps, width), generator=draws).double() for _ in "01")
    share = torch.rand(n, generator=draws).double()
    weight = torch.tensor(1.0, dtype=torch.double, requires_grad=True)
    penalty = gradient_penalty(
        lambda states: weight * states.square().sum(dim=(1, 2)) / 2, real, fake, share
    )
    lengths = [
        (s * h + (1 - s) * other).norm().item()
        for s, h, other in zip(share, real, fake, strict=True)
    ]
    assert penalty.item() == pytest.approx(np.mean([(x - 1) ** 2 for x in lengths]), abs=1e-9)
    (slope,) = torch.autograd.grad(penalty, weight)
    assert slope.item() == pytest.approx(np.mean([2 * (x - 1) * x for x in lengths]), abs=1e-9)
