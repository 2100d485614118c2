"""Networks of textual transfer: encoder, generator and discriminators over its states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from ctrlreward.recipes.papers.textual_transfer.vocabulary import EOS, GO, PAD, UNK


class Encoder(nn.Module):
    """GRU E(x, y) → z, which reads a sentence backwards from the state [y ; 0].

    z is the last `content_size` numbers of its last state. The result does not depend on the
    padding.

    Args:
        embedding_size: Width of the word embeddings.
        style_size: Width of y.
        content_size: Width of z.
        dropout: Dropout probability of the inputs.
    """

    def __init__(
        self, embedding_size: int, style_size: int, content_size: int, dropout: float
    ) -> None:
        super().__init__()
        self.content_size = content_size
        self.style = nn.Embedding(2, style_size)
        self.cell = nn.GRU(embedding_size, style_size + content_size, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, embedded: Tensor, lengths: Tensor, styles: Tensor) -> Tensor:
        """Return z, shape (n, content_size).

        Args:
            embedded: Word embeddings, padded on the right, shape (n, words, embedding_size).
            lengths: Number of words of each sentence, 1 or more, shape (n,).
            styles: Style of each sentence, 0 or 1, shape (n,).
        """
        places = torch.arange(embedded.shape[1], device=lengths.device)
        backwards = (lengths[:, None] - 1 - places) % embedded.shape[1]
        inputs = embedded.gather(1, backwards[..., None].expand_as(embedded))
        start = F.pad(self.style(styles), (0, self.content_size))
        states, _ = self.cell(self.dropout(inputs), start[None])
        last = states[torch.arange(len(lengths), device=lengths.device), lengths - 1]
        return last[:, -self.content_size :]


class Generator(nn.Module):
    """GRU G(y, z) → x, whose state starts as [y ; z].

    Args:
        embedding_size: Width of the word embeddings.
        style_size: Width of y.
        content_size: Width of z.
        vocabulary_size: Number of words, V.
        dropout: Dropout probability of the inputs and before the output layer.
    """

    def __init__(
        self,
        embedding_size: int,
        style_size: int,
        content_size: int,
        vocabulary_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.style = nn.Embedding(2, style_size)
        self.cell = nn.GRU(embedding_size, style_size + content_size, batch_first=True)
        self.output = nn.Linear(style_size + content_size, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def start(self, styles: Tensor, content: Tensor) -> Tensor:
        """Return the first state [y ; z], shape (n, width).

        Args:
            styles: Style to write in, 0 or 1, shape (n,).
            content: z, shape (n, content_size).
        """
        return torch.cat([self.style(styles), content], dim=1)

    def unfold(self, embedded: Tensor, start: Tensor) -> Tensor:
        """Return the states with the given words fed in, the first included.

        Args:
            embedded: Embeddings of `<go>` and the words, shape (n, steps, embedding_size).
            start: First state, shape (n, width).

        Returns:
            Shape (n, steps + 1, width).
        """
        states, _ = self.cell(self.dropout(embedded), start[None])
        return torch.cat([start[:, None], states], dim=1)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of the next word, shape (…, V), of states of shape (…, width)."""
        return self.output(self.dropout(states))

    def unfold_self_fed(
        self, embeddings: Tensor, start: Tensor, steps: int, temperature: float
    ) -> Tensor:
        """Return the states with the generator's own distributions fed in, the first included.

        The input after a step is the expected embedding under a Gumbel-softmax of its logits, which
        is close to one word at a low temperature and has a gradient at any.

        Args:
            embeddings: Embedding of each word, shape (V, embedding_size).
            start: First state, shape (n, width).
            steps: Number of steps.
            temperature: Temperature of the softmax; 0 feeds in the plain distribution.

        Returns:
            Shape (n, steps + 1, width).
        """
        inputs, states = embeddings[GO].expand(len(start), 1, -1), [start]
        for _ in range(steps):
            _, state = self.cell(self.dropout(inputs), states[-1][None])
            states.append(state[0])
            if len(states) <= steps:
                logits = self.logits(state[0])
                words = F.gumbel_softmax(logits, temperature) if temperature else logits.softmax(-1)
                inputs = (words @ embeddings)[:, None]
        return torch.stack(states, dim=1)

    @torch.no_grad()
    def write(self, embeddings: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest words one by one, without gradients and without dropout.

        Padding, `<go>` and `<unk>` are never written.

        Args:
            embeddings: Embedding of each word, shape (V, embedding_size).
            start: First state, shape (n, width).
            steps: Most words of a sentence.

        Returns:
            Ids, padded by `<eos>`, shape (n, words), and number of words of each, shape (n,).
        """
        state, words = start[None], torch.full_like(start[:, 0], GO, dtype=torch.long)
        open_, columns = torch.ones_like(words, dtype=torch.bool), []
        with without_dropout(self):
            for _ in range(steps):
                _, state = self.cell(embeddings[words][:, None], state)
                logits = self.logits(state[0])
                logits[:, [PAD, GO, UNK]] = -torch.inf
                words = logits.argmax(dim=-1)
                open_ = open_ & (words != EOS)
                if not open_.any():
                    break
                columns.append(torch.where(open_, words, EOS))
        if not columns:
            columns = [torch.full_like(words, EOS)]
        ids = torch.stack(columns, dim=1)
        return ids, (ids != EOS).sum(dim=1)


class StateDiscriminator(nn.Module):
    """TextCNN over the states of a generator, one logit a sequence; higher is a real one.

    Args:
        width: Width of a state.
        widths: Filter widths in states.
        filters: Number of filters of each width.
        dropout: Dropout probability of the features.
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
        features = [
            F.leaky_relu(convolution(_windows(states, size))).amax(dim=1)
            for size, convolution in zip(self.widths, self.convolutions, strict=True)
        ]
        return self.output(self.dropout(torch.cat(features, dim=1)))[:, 0]


def _windows(states: Tensor, size: int) -> Tensor:
    """Return all runs of `size` states, shape (n, steps - size + 1, size * width)."""
    last = states.shape[1] - size + 1
    return torch.cat([states[:, i : i + last] for i in range(size)], dim=2)


class TransferNetworks(nn.Module):
    """Encoder and generator over one table of word embeddings, drawn at random, of norm 1.

    Arguments are as in `Generator`; for the reserved ids see `vocabulary.py`.
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
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.embedding.weight.data = F.normalize(self.embedding.weight.data)
        sizes = embedding_size, style_size, content_size
        self.encoder = Encoder(*sizes, dropout)
        self.generator = Generator(*sizes, vocabulary_size, dropout)

    def encode(self, words: Tensor, lengths: Tensor, styles: Tensor) -> Tensor:
        """Return z, shape (n, content_size).

        Args:
            words: Ids, padded on the right, shape (n, words).
            lengths: Number of words of each sentence, shape (n,); an empty one is read as its first
                id.
            styles: Style of each sentence, shape (n,).
        """
        return self.encoder(self.embedding(words), lengths.clamp(min=1), styles)

    def unfold(self, words: Tensor, styles: Tensor, content: Tensor) -> Tensor:
        """Return the generator's states over given words, shape (n, words + 2, width).

        The logits of the i-th word follow from state i + 1.
        """
        inputs = self.embedding(F.pad(words, (1, 0), value=GO))
        return self.generator.unfold(inputs, self.generator.start(styles, content))

    def unfold_self_fed(
        self, styles: Tensor, content: Tensor, steps: int, temperature: float
    ) -> Tensor:
        """Return the generator's states over its own words, shape (n, steps + 1, width)."""
        start = self.generator.start(styles, content)
        return self.generator.unfold_self_fed(self.embedding.weight, start, steps, temperature)

    def write(self, styles: Tensor, content: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest words; see `Generator.write`."""
        start = self.generator.start(styles, content)
        return self.generator.write(self.embedding.weight, start, steps)


@contextmanager
def without_dropout(*modules: nn.Module) -> Iterator[None]:
    """Put modules in eval mode inside the context, and each back in its mode afterwards."""
    modes = [(module, module.training) for root in modules for module in root.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Let gradients pass through modules inside the context without reaching their weights."""
    for module in modules:
        module.requires_grad_(False)
    try:
        yield
    finally:
        for module in modules:
            module.requires_grad_(True)


@torch.no_grad()
def transferred(
    networks: TransferNetworks,
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[str],
    targets: Sequence[int],
    max_words: int,
    batch_size: int = 256,
) -> list[str]:
    """Return the sentences in the target styles, each word the likeliest after those before it.

    Args:
        networks: Encoder and generator.
        tokenizer: Their vocabulary.
        sentences: n sentences of the other styles.
        targets: Style to write in, 0 or 1, n of them.
        max_words: Most words of a result.
        batch_size: Sentences per forward pass, of about equal length.
    """
    device = networks.embedding.weight.device
    encoded = tokenizer(list(sentences)).input_ids if sentences else []
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    texts = [""] * len(encoded)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        lengths = torch.tensor([len(encoded[i]) for i in rows], device=device)
        styles = torch.tensor([targets[i] for i in rows], device=device)
        words = [torch.tensor(encoded[i] or [UNK], device=device) for i in rows]
        with without_dropout(networks):
            padded = pad_sequence(words, batch_first=True, padding_value=PAD)
            content = networks.encode(padded, lengths, 1 - styles)
            ids, counts = networks.write(styles, content, max_words)
        for i, row, count in zip(rows, ids.tolist(), counts.tolist(), strict=True):
            texts[i] = str(tokenizer.decode(row[:count], clean_up_tokenization_spaces=False))
    return texts
