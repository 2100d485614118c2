"""Training of textual transfer without parallel data: models M0 to M7 of Pang & Gimpel (2019).

`configs/textual_transfer/m*.yaml` use this class. Copy this file to change it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedTokenizerFast

from ctrlreward.arguments import one_of
from ctrlreward.recipes.papers.textual_transfer.batches import TransferBatch, TransferSentences
from ctrlreward.recipes.papers.textual_transfer.losses import GeneratorLoss
from ctrlreward.recipes.papers.textual_transfer.networks import (
    StateDiscriminator,
    TransferNetworks,
    frozen,
    transferred,
)
from ctrlreward.recipes.papers.textual_transfer.objective import (
    States,
    adversarial_losses,
    discriminator_losses,
    paraphrase,
    reconstruction,
    transfer_losses,
    unfold,
)
from ctrlreward.recipes.papers.textual_transfer.style_models import StyleModels
from ctrlreward.recipes.papers.textual_transfer.vocabulary import vocabulary_from_json
from ctrlreward.samples import Samples

# λ1 to λ6 of M0. The other models add the losses that they have.
LAMBDAS = {
    "reconstruction": 1.0,
    "paraphrase": 0.0,
    "cycle": 0.0,
    "language": 0.0,
    "adversarial": 1.0,
    "critic": 0.0,
}


class _FlushDenormals(pl.Callback):
    """Takes denormal numbers as 0 in the process while it trains."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Flush from now on; threads inherit it if they are started later."""
        torch.set_flush_denormal(stage == "fit")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the flushing."""
        torch.set_flush_denormal(False)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """End the flushing."""
        torch.set_flush_denormal(False)


class TextualTransfer(pl.LightningModule):
    """Encoder and generator that rewrite a sentence in the other of two styles.

    Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, §4. Each step updates the
    discriminators on eqs. 3 and 7, then embeddings, encoder and generator on λ1 eq. 2 + λ2 eq. 5 +
    λ3 eq. 4 + λ4 eq. 6 - λ5 eq. 3 - λ6 2^(-epoch) eq. 7. A step of both counts as one
    `global_step`.

    Details not given in the paper follow the public code of Shen et al. (2017), on which its
    code is based: betas 0.5 and 0.999 in Adam, gradients clipped to norm 30, dropout 0.5, locally
    shuffled words for the encoder, and no adversarial training while discriminators are poor.

    Logs `loss/<name>` of each loss in use, and `loss/poor_discriminators`, the share of steps that
    learned reconstruction alone. `complete_samples` makes it a generator for `GenerationScorer`.
    Checkpoints contain the vocabulary, so `load_from_checkpoint` needs nothing else. A resumed run
    repeats an uninterrupted one. One device.

    Args:
        lambdas: Loss → weight, for those that differ from M0's: `reconstruction` 1, `paraphrase` 0,
            `cycle` 0, `language` 0, `adversarial` 1, `critic` 0. The paper's are 0.2, 5, 1e-3 and 1
            for paraphrase, cycle, language and critic.
        embedding_size: Width of the word embeddings, which encoder and generator share.
        style_size: Width of y.
        content_size: Width of z. The GRUs are `style_size + content_size` wide.
        dropout: Dropout probability of the GRUs' inputs, and before the output layer.
        filters: Filters of each width in each discriminator; widths 3, 4, 5 in the first pair and
            1, 2, 3 in the second.
        discriminator_dropout: Dropout probability of the first pair's features.
        learning_rate: Learning rate of Adam.
        generator_loss: Adversarial loss of encoder and generator. The default has a gradient where
            the discriminators are sure, which is soon the case; see `losses.generator_loss`.
        poor_discriminator: Loss from which on a discriminator of the first pair is too poor to
            learn from: encoder and generator then learn reconstruction alone. None never stops.
        temperature: Temperature of a Gumbel-softmax of the words that are fed back, as in Shen et
            al.'s code: at a low one, discriminators see states of about the words that argmax would
            write. 0 feeds back the plain distribution.
        critic_decay: Factor on the weight of eq. 7 per epoch.
        gradient_norm: Largest norm of the gradient of each network's update.
        max_words: Most words of a transferred sentence.
        style_models: Language models of the styles, for `language`; trained first if absent.
        seed: Seed of dropout and of all draws in training; None takes the seed of
            `seed_everything`.

    Raises:
        ValueError: `lambdas` has an unknown loss or a negative weight.
        MisconfigurationException: In `setup`: several devices, float16, `language` without
            `style_models`, or `paraphrase` with data that has none.
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
        discriminator_dropout: float = 0.5,
        learning_rate: float = 1e-4,
        generator_loss: GeneratorLoss = "non_saturating",
        poor_discriminator: float | None = 1.2,
        temperature: float = 0.1,
        critic_decay: float = 0.5,
        gradient_norm: float = 30.0,
        max_words: int = 20,
        style_models: StyleModels | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["style_models"])
        self.options: Any = self.hparams  # any name is an attribute
        self.lambdas = {**LAMBDAS, **_checked(dict(lambdas or {}))}
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        self.style_models = style_models
        self.automatic_optimization = False
        # Frozen, and in no checkpoint: a tuple hides them from the module.
        self.language_models: tuple[nn.Module, ...] = ()
        self._vocabulary: str | None = None

    def setup(self, stage: str) -> None:
        """Build the networks for the vocabulary of the data, and train what `language` needs."""
        if stage != "fit":
            return
        data: TransferSentences = self.trainer.datamodule  # type: ignore[attr-defined]
        self._check(data)
        self._build(data.tokenizer.backend_tokenizer.to_str(), data.styles)
        if self.lambdas["language"] and self.style_models:
            self.language_models = self.style_models.trained(data)

    def on_fit_start(self) -> None:
        """Move the language models to the device; they are not submodules."""
        for model in self.language_models:
            model.to(self.device)

    def configure_callbacks(self) -> list[pl.Callback]:
        """Return one that takes denormal numbers as 0, which cost a CPU many times a normal one.

        The gradient of a softmax at a low temperature has many of them.
        """
        return [_FlushDenormals()]

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Adam for embeddings, encoder and generator, and Adam for the discriminators."""
        judges = nn.ModuleList([self.discriminators, self.critics])
        return [
            torch.optim.Adam(module.parameters(), self.options.learning_rate, betas=(0.5, 0.999))
            for module in (self.networks, judges)
        ]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the vocabulary and the styles."""
        checkpoint["vocabulary"] = self._vocabulary
        checkpoint["styles"] = list(self.styles)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the networks of a checkpoint.

        Raises:
            ValueError: The module has been set up for other words or styles.
        """
        first, second = checkpoint["styles"]
        self._build(checkpoint["vocabulary"], (first, second))

    def on_train_batch_start(self, batch: TransferBatch, batch_idx: int) -> None:
        """Seed dropout and draws by the step: a resumed run repeats an uninterrupted one."""
        torch.manual_seed(self.seed + self.trainer.global_step)

    def training_step(self, batch: TransferBatch, batch_idx: int) -> None:
        """Update the discriminators, then embeddings, encoder and generator."""
        # Lightning counts the steps of the optimizers that it wraps: one a batch is enough.
        writer = self.optimizers()[0]  # type: ignore[index]
        judge = self.optimizers(use_pl_optimizer=False)[1]  # type: ignore[index]
        states = unfold(self.networks, batch, self.options.temperature)
        judged = discriminator_losses(states.detached(), self.discriminators, self.critics)
        judge.zero_grad()
        self.manual_backward(_sum(judged))
        for network in (*self.discriminators, *self.critics):
            clip_grad_norm_(network.parameters(), self.options.gradient_norm)
        judge.step()
        poor = self._is_poor(judged)
        with frozen(self.discriminators, self.critics):
            losses = self._losses(batch, states, reconstruction_alone=poor)
            total = _sum({name: self._weight(name) * loss for name, loss in losses.items()})
            writer.zero_grad()
            self.manual_backward(total)
        clip_grad_norm_(self.networks.parameters(), self.options.gradient_norm)
        writer.step()
        logged: dict[str, Tensor | float] = {**judged, **losses, "total": total}
        logged["poor_discriminators"] = float(poor)
        size = len(batch.words) // 2
        self.log_dict({f"loss/{name}": value for name, value in logged.items()}, batch_size=size)

    def validation_step(self, batch: object, batch_idx: int) -> None:
        """Do nothing: `GenerationScorer` scores at validation."""

    def complete_samples(self, samples: Samples) -> list[str]:
        """Rewrite the sources in the styles that `labels` name, greedily.

        Raises:
            ValueError: `sources` or `labels` are absent, or a label is not a style of the model.
        """
        sources = samples.require("sources", type(self).__name__)
        labels = samples.require("labels", type(self).__name__)
        for label in labels:
            if label not in self.styles:
                raise ValueError(
                    f"the label {label!r} is not a style of the model, must be one of "
                    f"{', '.join(self.styles)}"
                )
        targets = [self.styles.index(label) for label in labels]
        return transferred(self.networks, self.tokenizer, sources, targets, self.options.max_words)

    def _check(self, data: TransferSentences) -> None:
        """Raise if the run can't use these losses, this device or this precision."""
        problems = {
            "trains on one device. Use Trainer(devices=1)": self.trainer.world_size > 1,
            "has no loss scaling. Use Trainer(precision='bf16-mixed')": (
                self.trainer.precision == "16-mixed"
            ),
            "has the loss language. Set style_models, {folder: runs/style_models}": (
                self.lambdas["language"] and not self.style_models
            ),
            "has the loss paraphrase. Set paraphrases of the data, {} for pairs of its sentences": (
                self.lambdas["paraphrase"] and not data.pairs
            ),
        }
        for message, found in problems.items():
            if found:
                raise MisconfigurationException(f"TextualTransfer {message}")

    def _losses(
        self, batch: TransferBatch, states: States, reconstruction_alone: bool
    ) -> dict[str, Tensor]:
        """Return the losses of eqs. 2 to 7 that this step learns from, each over both styles."""
        losses = {"reconstruction": reconstruction(self.networks, batch, states)}
        if reconstruction_alone:
            return losses
        form, weights = self.options.generator_loss, self.lambdas
        losses |= adversarial_losses(states, self.discriminators, self.critics, form)
        if weights["paraphrase"]:
            losses["paraphrase"] = paraphrase(self.networks, batch)
        if weights["cycle"] or weights["language"]:
            losses |= transfer_losses(self.networks, batch, states, self.language_models)
        return {name: loss for name, loss in losses.items() if weights[name]}

    def _is_poor(self, judged: Mapping[str, Tensor]) -> bool:
        bound = self.options.poor_discriminator
        worst = max(judged[f"discriminator_{style}"].item() for style in (0, 1))
        return bound is not None and worst >= bound

    def _weight(self, name: str) -> float:
        decay = self.options.critic_decay**self.current_epoch if name == "critic" else 1.0
        return self.lambdas[name] * decay

    def _build(self, vocabulary: str, styles: tuple[str, str]) -> None:
        """Build the networks, or check that they fit a vocabulary and these styles.

        Raises:
            ValueError: The module has been built for others.
        """
        if self._vocabulary is not None:
            if (vocabulary, styles) != (self._vocabulary, self.styles):
                raise ValueError(
                    "checkpoint and data differ in vocabulary or styles. Resume with the data that "
                    "the checkpoint was trained on."
                )
            return
        self._vocabulary, self.styles = vocabulary, styles
        self.tokenizer = vocabulary_from_json(vocabulary)
        options = self.options
        sizes = options.embedding_size, options.style_size, options.content_size
        self.networks = TransferNetworks(len(self.tokenizer), *sizes, options.dropout)
        width = options.style_size + options.content_size
        self.discriminators = nn.ModuleList(
            StateDiscriminator(width, (3, 4, 5), options.filters, options.discriminator_dropout)
            for _ in styles
        )
        # Dropout would make the slope of eq. 7 a random one.
        self.critics = nn.ModuleList(
            StateDiscriminator(width, (1, 2, 3), options.filters, dropout=0.0)
            for _ in (styles if self.lambdas["critic"] else ())
        )


def _checked(lambdas: Mapping[str, float]) -> Mapping[str, float]:
    for name, value in lambdas.items():
        one_of("a key of lambdas", name, LAMBDAS)
        if not 0 <= value < float("inf"):
            raise ValueError(f"lambdas[{name!r}] must be 0 or more, got {value}")
    return lambdas


def _sum(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()
