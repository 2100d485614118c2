"""Training of models M0 to M7 of Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878.

`configs/textual_transfer/yelp.yaml` uses these classes. Copy this folder to change them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR
from transformers import PreTrainedTokenizerFast

from ctrlreward.arguments import one_of
from ctrlreward.completion import eval_mode
from ctrlreward.models.batching import pad_rows
from ctrlreward.recipes.papers.textual_transfer.data import (
    EOS,
    GO,
    PAD,
    TransferBatch,
    TransferSentences,
    vocabulary_from_json,
)
from ctrlreward.recipes.papers.textual_transfer.model import (
    GeneratorLoss,
    StateDiscriminator,
    TransferNetworks,
    discriminator_losses,
    reconstruction,
    transferred,
    unfold,
    writer_losses,
)
from ctrlreward.recipes.papers.textual_transfer.paraphrases import paraphrase_pairs
from ctrlreward.samples import Samples

# λ1 to λ6 of M0. The other models add the losses that they have.
LAMBDAS = {
    **{"reconstruction": 1.0, "paraphrase": 0.0, "cycle": 0.0},
    **{"language": 0.0, "adversarial": 1.0, "critic": 0.0},
}
_GRADIENT_NORM = 30.0  # largest norm of the gradient of each network's update


class StyleLanguageModel(nn.Module):
    """GRU language model of the sentences of a style, l of eq. 6."""

    def __init__(
        self, vocabulary_size: int, embedding_size: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.cell = nn.GRU(embedding_size, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return log-probabilities of the token after each input, shape (n, T, V).

        `inputs`, shape (n, T), begin with `<go>`. A position depends only on the inputs up to it,
        so padding may follow.
        """
        states, _ = self.cell(self.dropout(self.embedding(inputs)))
        return self.output(self.dropout(states)).log_softmax(dim=-1)

    def loss(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, int]:
        """Return the cross-entropy of sentences and their ends in nats, a sum, and its terms.

        `rows` are token ids without `<go>` and `<eos>`; `<unk>` counts as one word.
        """
        device = self.output.weight.device
        inputs, mask = pad_rows([(GO, *row) for row in rows], PAD, device)
        targets, _ = pad_rows([(*row, EOS) for row in rows], PAD, device)
        counted = mask.bool()
        likelihoods = self(inputs)[counted]
        return nll_loss(likelihoods, targets[counted], reduction="sum"), int(counted.sum())

    @torch.no_grad()
    def perplexity(self, rows: Sequence[Sequence[int]], batch_size: int = 256) -> float:
        """Return the perplexity of one or more sentences with their ends, as one corpus."""
        with eval_mode(self):
            losses = [self.loss(batch) for batch in _batches(rows, batch_size)]
        mean = sum(float(total) for total, _ in losses) / sum(count for _, count in losses)
        return math.exp(min(mean, 80.0))


@dataclass(frozen=True)
class StyleModels:
    """Training of the language models of both styles.

    The paper does not state the sizes; the defaults follow Shen et al. (2017). One in 20 sentences
    of a style is held out.

    Args:
        embedding_size: Width of the word embeddings.
        width: Width of the GRU.
        dropout: Dropout probability of the GRU's inputs and before the output layer.
        epochs: Most epochs; the training ends before if the held-out perplexity rises.
    """

    embedding_size: int = 100
    width: int = 500
    dropout: float = 0.5
    epochs: int = 5

    def trained(self, data: TransferSentences) -> list[StyleLanguageModel]:
        """Return the frozen models of style 0 and style 1, of data after `setup`.

        Equal arguments give equal models, and the caller's random state is restored.
        """
        with torch.random.fork_rng():
            return [self._trained(data, style) for style in data.styles]

    def _trained(self, data: TransferSentences, style: str) -> StyleLanguageModel:
        """Return the model of the epoch with the best held-out perplexity."""
        rows: list[list[int]] = data.tokenizer(data.sentences[style]).input_ids
        torch.manual_seed(0)
        count = min(max(1, round(len(rows) / 20)), len(rows) - 1)
        order = torch.randperm(len(rows)).tolist()
        held_out, kept = ([rows[i] for i in part] for part in (order[:count], order[count:]))
        sizes = self.embedding_size, self.width, self.dropout
        model = StyleLanguageModel(len(data.tokenizer), *sizes)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        # The output bias starts at the log of each token's frequency, which saves an epoch.
        ids = torch.tensor([token for row in kept for token in (*row, EOS)])
        counts = torch.bincount(ids, minlength=len(model.output.bias)).clamp(min=1).float()
        model.output.bias.data.copy_((counts / counts.sum()).log())
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        batches = list(_batches(kept, 64))
        decay = LinearLR(optimizer, 1.0, 0.0, total_iters=self.epochs * len(batches))
        best, weights = math.inf, dict[str, Tensor]()
        for epoch in range(1, self.epochs + 1):
            for i in torch.randperm(len(batches)).tolist():
                total, terms = model.loss(batches[i])
                optimizer.zero_grad()
                (total / terms).backward()
                clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                decay.step()
            perplexity = model.perplexity(held_out)
            rank_zero_info(f"language model of {style}, epoch {epoch}: perplexity {perplexity:.1f}")
            if not perplexity < best:
                break
            best = perplexity
            weights = {name: value.clone() for name, value in model.state_dict().items()}
        if not weights:
            raise ValueError(f"the language model of {style} diverges")
        model.load_state_dict(weights)
        return model.eval().requires_grad_(False)


def _batches(rows: Sequence[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    """Yield batches of about equally long rows."""
    by_length = sorted(rows, key=len)
    yield from (by_length[i : i + size] for i in range(0, len(rows), size))


class TextualTransfer(pl.LightningModule):
    """Encoder and generator that rewrite a sentence in the other of two styles.

    Each step updates the discriminators on eqs. 3 and 7, then embeddings, encoder and generator on
    λ1 eq. 2 + λ2 eq. 5 + λ3 eq. 4 + λ4 eq. 6 - λ5 eq. 3 - λ6 2^(-epoch) eq. 7. A step of both
    counts as one `global_step`.

    Details not given in the paper follow the public code of Shen et al. (2017): betas 0.5 and 0.999
    in Adam, gradients clipped to norm 30, dropout 0.5, locally shuffled words for the encoder, and
    no adversarial training while discriminators are poor.

    Logs `loss/<name>` of each loss in use, and `loss/poor_discriminators`, the share of steps that
    learned reconstruction alone. Checkpoints contain the vocabulary, so `load_from_checkpoint`
    needs nothing else. A resumed run repeats an uninterrupted one. One device.

    Args:
        lambdas: Loss → weight, for those that differ from M0's (`LAMBDAS`). The paper's are 0.2, 5,
            1e-3 and 1 for paraphrase, cycle, language and critic.
        embedding_size: Width of the word embeddings, which encoder and generator share.
        style_size: Width of y.
        content_size: Width of z. The GRUs are `style_size + content_size` wide.
        dropout: Dropout probability of the GRUs' inputs, and before the output layer.
        filters: Filters of each width in each discriminator; widths 3, 4, 5 in the first pair and
            1, 2, 3 in the second.
        learning_rate: Learning rate of Adam.
        generator_loss: Adversarial loss of encoder and generator; see `model.generator_loss`.
        poor_discriminator: Loss from which on a discriminator of the first pair is too poor to
            learn from: encoder and generator then learn reconstruction alone. None never stops.
        temperature: Temperature of a Gumbel-softmax of the words that are fed back, as in Shen et
            al.'s code. 0 feeds back the plain distribution.
        max_words: Most words of a transferred sentence.
        style_models: Language models of the styles, for `language`, which are trained first.
        paraphrases: File of pairs for `paraphrase`; None makes them, see `paraphrase_pairs`.
    """

    tokenizer: PreTrainedTokenizerFast
    styles: tuple[str, str]

    def __init__(
        self,
        lambdas: Mapping[str, float] | None = None,
        embedding_size: int = 100,
        style_size: int = 200,
        content_size: int = 500,
        dropout: float = 0.5,
        filters: int = 128,
        learning_rate: float = 1e-4,
        generator_loss: GeneratorLoss = "non_saturating",
        poor_discriminator: float | None = 1.2,
        temperature: float = 0.1,
        max_words: int = 20,
        style_models: StyleModels = StyleModels(),
        paraphrases: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["style_models"])
        self.options: Any = self.hparams  # any name is an attribute
        for name, weight in (lambdas or {}).items():
            one_of("a key of lambdas", name, LAMBDAS)
            if not 0 <= weight < math.inf:
                raise ValueError(f"lambdas[{name!r}] must be 0 or more, got {weight}")
        self.lambdas = {**LAMBDAS, **(lambdas or {})}
        self.style_models = style_models
        self.automatic_optimization = False
        # Frozen, and in no checkpoint: a tuple hides them from the module.
        self.language_models: tuple[nn.Module, ...] = ()
        self._vocabulary: str | None = None

    def setup(self, stage: str) -> None:
        if stage != "fit":
            return
        if self.trainer.world_size > 1 or self.trainer.precision == "16-mixed":
            raise MisconfigurationException(
                "TextualTransfer must have devices=1 and another precision than 16-mixed"
            )
        # The gradient of a softmax at a low temperature has many denormal numbers, which cost a
        # CPU many times a normal one. Threads inherit the setting if they are started later.
        torch.set_flush_denormal(True)
        data: TransferSentences = self.trainer.datamodule  # type: ignore[attr-defined]
        self._build(data.tokenizer.backend_tokenizer.to_str(), data.styles)
        if self.lambdas["paraphrase"]:
            data.pairs = paraphrase_pairs(self.options.paraphrases, *data.sentences.values())
        if self.lambdas["language"]:
            self.language_models = tuple(self.style_models.trained(data))

    def teardown(self, stage: str) -> None:
        """Count denormal numbers again."""
        torch.set_flush_denormal(False)

    def on_fit_start(self) -> None:
        """Move the language models to the device; they are not submodules."""
        for model in self.language_models:
            model.to(self.device)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(module.parameters(), self.options.learning_rate, betas=(0.5, 0.999))
            for module in (self.networks, nn.ModuleList([self.discriminators, self.critics]))
        ]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["vocabulary"] = self._vocabulary
        checkpoint["styles"] = list(self.styles)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        first, second = checkpoint["styles"]
        self._build(checkpoint["vocabulary"], (first, second))

    def on_train_batch_start(self, batch: TransferBatch, batch_idx: int) -> None:
        """Seed dropout and draws by the step: a resumed run repeats an uninterrupted one."""
        torch.manual_seed(int(os.environ.get("PL_GLOBAL_SEED", 0)) + self.trainer.global_step)

    def training_step(self, batch: TransferBatch, batch_idx: int) -> None:
        """Update the discriminators, then embeddings, encoder and generator."""
        # Lightning counts the steps of the optimizers that it wraps: one a batch is enough.
        writer = self.optimizers()[0]  # type: ignore[index]
        judge = self.optimizers(use_pl_optimizer=False)[1]  # type: ignore[index]
        judges = *self.discriminators, *self.critics
        states = unfold(self.networks, batch, self.options.temperature)
        judged = discriminator_losses(states, self.discriminators, self.critics)
        judge.zero_grad()
        self.manual_backward(_sum(judged))
        for network in judges:
            clip_grad_norm_(network.parameters(), _GRADIENT_NORM)
        judge.step()
        bound = self.options.poor_discriminator
        worst = max(judged[f"discriminator_{style}"].item() for style in (0, 1))
        poor = bound is not None and worst >= bound
        for network in judges:  # gradients pass through them
            network.requires_grad_(False)
        if poor:
            sides = states.real, batch.words, batch.lengths
            losses = {"reconstruction": reconstruction(self.networks, *sides)}
        else:
            losses = writer_losses(
                *(self.networks, batch, states, self.discriminators, self.critics),
                *(self.language_models, self.options.generator_loss, self.lambdas),
            )
        weights = self.lambdas | {"critic": self.lambdas["critic"] * 0.5**self.current_epoch}
        total = _sum({name: weights[name] * loss for name, loss in losses.items()})
        writer.zero_grad()
        self.manual_backward(total)
        for network in judges:
            network.requires_grad_(True)
        clip_grad_norm_(self.networks.parameters(), _GRADIENT_NORM)
        writer.step()
        logged: dict[str, Tensor | float] = {**judged, **losses, "total": total}
        logged["poor_discriminators"] = float(poor)
        size = len(batch.words) // 2
        self.log_dict({f"loss/{name}": value for name, value in logged.items()}, batch_size=size)

    def validation_step(self, batch: object, batch_idx: int) -> None:
        """Do nothing: `GenerationScorer` scores at validation."""

    def complete_samples(self, samples: Samples) -> list[str]:
        """Rewrite the sources in the styles that `labels` name, greedily."""
        sources = samples.require("sources", "TextualTransfer")
        labels = samples.require("labels", "TextualTransfer")
        targets = [self.styles.index(one_of("a label", label, self.styles)) for label in labels]
        return transferred(self.networks, self.tokenizer, sources, targets, self.options.max_words)

    def _build(self, vocabulary: str, styles: tuple[str, str]) -> None:
        """Build the networks, or check that they are of this vocabulary and these styles."""
        if self._vocabulary is not None:
            if (vocabulary, styles) != (self._vocabulary, self.styles):
                raise ValueError("the data differ from the checkpoint's in vocabulary or styles")
            return
        self._vocabulary, self.styles = vocabulary, styles
        self.tokenizer = vocabulary_from_json(vocabulary)
        options = self.options
        sizes = options.embedding_size, options.style_size, options.content_size
        self.networks = TransferNetworks(len(self.tokenizer), *sizes, options.dropout)
        width = options.style_size + options.content_size
        self.discriminators = nn.ModuleList(
            StateDiscriminator(width, (3, 4, 5), options.filters) for _ in styles
        )
        # Dropout would make the slope of eq. 7 a random one.
        self.critics = nn.ModuleList(
            StateDiscriminator(width, (1, 2, 3), options.filters, dropout=0.0)
            for _ in (styles if self.lambdas["critic"] else ())
        )


def _sum(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()
