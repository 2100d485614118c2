"""LightningModules that train the aligners D and R of CTC.

Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5 and appendix A. The trained folder
is a plain transformers model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import cross_entropy, mse_loss
from torchmetrics import MeanSquaredError, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, BinaryF1Score
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from ctrlreward.arguments import one_of
from ctrlreward.files import whole_folder
from ctrlreward.functional.alignment import content_tokens
from ctrlreward.models.aligner import ALIGNED, unit_logits
from ctrlreward.models.encoder import drop_layers
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.pairs import UNITS, EncodedPair, Span, Unit, encode_pairs, pad_pairs
from ctrlreward.models.sources import TRAINED_NAMES, resolve, trained_folder
from ctrlreward.models.stop_words import read_stop_words
from ctrlreward.models.tokenization import max_tokens
from ctrlreward.recipes.papers.ctc.labelled_pairs import AlignmentPair

Batch = list[AlignmentPair]

_LOADED = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}

# Label of a word that the loss and the metrics leave out.
NO_LABEL = -1


def reads_left_to_right(config: PretrainedConfig) -> bool:
    """Return whether a token attends only to earlier tokens, as in decoder-only models."""
    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and (
        type(config) not in MODEL_FOR_MASKED_LM_MAPPING or getattr(config, "is_decoder", False)
    )


class AlignerTrainer(pl.LightningModule, ABC):
    """Base of both aligner trainers: AdamW on batches of pairs, the best model kept in a folder.

    Subclasses name the metric of a validation that selects the model, and its sign in `selected_by`
    (1 if higher is better).

    In a pair that is longer than the encoder reads, the end of b is cut off.

    Args:
        encoder: Pretrained encoder to fine-tune: local folder, hub id or short name.
        folder: Folder of the trained model, or a name in `models.sources.TRAINED_NAMES`, whose
            folder is in the cache. It is written after each validation of a fit that is the best so
            far, or at the end of a fit without validations. A folder with a model is replaced; a
            folder with other files is an error.
        learning_rate: Peak learning rate of AdamW, after linear warm-up over the first tenth of
            the steps and before linear decay to 0.
        weight_decay: Weight decay of AdamW.
        unit: What has a label: a `"word"` between white space, as in the paper, or a `"piece"`, a
            token.
        layers: Number of the encoder's layers to keep, from the first; None keeps all.
        frozen_layers: Number of its first layers, embeddings included, that are not trained.
        b_first: Whether the model reads b before a; None does so where it reads from left to
            right, such as SmolLM2, since a word then sees nothing after it.
    """

    selected_by: ClassVar[tuple[str, int]]

    # Set by configure_model.
    model: PreTrainedModel
    metrics: MetricCollection

    def __init__(
        self,
        encoder: str = "minilm-l6",
        folder: str = "runs/aligner",
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
        unit: Unit = "word",
        layers: int | None = None,
        frozen_layers: int = 0,
        b_first: bool | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.folder = folder
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.unit: Unit = one_of("unit", unit, UNITS)
        self.layers = layers
        self.frozen_layers = frozen_layers
        self.b_first = b_first
        self.best: float | None = None  # None before the first validation

    @abstractmethod
    def load_encoder(self, location: str) -> PreTrainedModel:
        """Load the encoder with a new head."""

    @abstractmethod
    def new_metrics(self) -> MetricCollection:
        """Return the metrics of a validation."""

    @abstractmethod
    def loss(self, encoded: list[EncodedPair], batch: Batch, inputs: dict[str, Tensor]) -> Tensor:
        """Return the mean loss of a batch; update the metrics if in validation."""

    def configure_model(self) -> None:
        """Load the encoder once; Lightning calls this before each fit and each validation."""
        if "model" in dict(self.named_children()):
            return
        self.tokenizer = load_tokenizer(self.encoder)
        self.model = self.load_encoder(resolve(self.encoder)).train()  # loaded in eval mode
        self.model.config.pad_token_id = self.tokenizer.pad_token_id  # which a decoder's head skips
        self.model.config.aligner_unit = self.unit
        if self.b_first is None:
            self.b_first = reads_left_to_right(self.model.config)
        self.model.config.aligner_b_first = self.b_first
        if self.layers is not None:
            drop_layers(self.model, self.layers, self.encoder)
        if self.frozen_layers:
            freeze_layers(self.model, self.frozen_layers, self.encoder)
        self.metrics = self.new_metrics()
        self.limit = max_tokens(self.tokenizer, self.model.config)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW with linear warm-up and decay."""
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, self.learning_rate, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = max(1, steps // 10)

        def rate(step: int) -> float:
            return min((step + 1) / warmup, max(0.0, (steps - step) / max(1, steps - warmup)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Raise before any training if the folder must not be replaced."""
        self._checked_folder()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss and log it as `train_loss`."""
        loss = self._batch_loss(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log `val_loss` and the metrics."""
        loss = self._batch_loss(batch)
        self.log_dict(self.metrics, batch_size=len(batch))
        self.log("val_loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def on_validation_end(self) -> None:
        """Write the folder if this is the best validation of the fit so far."""
        if self.trainer.sanity_checking or self.trainer.state.fn != "fit":
            return
        if self.best is None:
            self.best = -math.inf
        name, sign = self.selected_by
        metrics = self.trainer.callback_metrics
        value = sign * metrics[name].item()
        # F1 is a number where the loss is not.
        if math.isfinite(metrics["val_loss"].item()) and value > self.best:
            self.best = value
            self._save()

    def on_fit_end(self) -> None:
        """Write the folder if there was no validation; warn if none had a finite loss."""
        if self.best is None:
            self._save()
        elif math.isinf(self.best):
            rank_zero_warn(f"no validation had a finite loss: {self.folder} was not written")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the best value, so that a resumed run replaces the folder only by a better model."""
        checkpoint["best_validation"] = self.best

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the best value."""
        self.best = checkpoint["best_validation"]

    def _batch_loss(self, batch: Batch) -> Tensor:
        pairs = [(p.a, p.b) for p in batch]
        encoded = encode_pairs(
            self.tokenizer, pairs, self.limit, self.unit, b_first=bool(self.b_first)
        )
        inputs = pad_pairs(encoded, self.tokenizer.pad_token_id or 0, self.device)
        return self.loss(encoded, batch, inputs)

    def _save(self) -> None:
        trial = self.trainer.fast_dev_run  # type: ignore[attr-defined]  # set by name
        if trial or not self.trainer.is_global_zero:
            return
        with whole_folder(self._checked_folder()) as folder:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _checked_folder(self) -> Path:
        if self.folder in TRAINED_NAMES:
            folder = trained_folder(self.folder)
        else:
            folder = Path(self.folder).expanduser()
        occupied = not folder.is_dir() or any(folder.iterdir())
        if folder.exists() and occupied and not (folder / "config.json").is_file():
            raise ValueError(
                f"folder = {self.folder!r} exists and does not contain a model; it would be "
                "replaced. Use an empty or a new folder."
            )
        return folder


class TokenAlignerTrainer(AlignerTrainer):
    """Trainer of the discriminative aligner D: whether b supports each word of a.

    `TokenAligner` loads its folder. Losses are cross-entropies over the words of a. Validation
    also logs `val_f1_hallucinated` (F1 of the hallucinated words at probability 0.5), which selects
    the model, and `val_auc` (AUROC), both 0 to 1, higher is better.
    """

    selected_by = ("val_f1_hallucinated", 1)

    def new_metrics(self) -> MetricCollection:
        """Return F1 and AUROC of the probability that a word is hallucinated."""
        return MetricCollection({"val_f1_hallucinated": BinaryF1Score(), "val_auc": BinaryAUROC()})

    def load_encoder(self, location: str) -> PreTrainedModel:
        """Load the encoder with a new head of two labels."""
        labels = {0: "hallucinated", 1: ALIGNED}
        head = {"id2label": labels, "label2id": {label: i for i, label in labels.items()}}
        return AutoModelForTokenClassification.from_pretrained(location, **head, **_LOADED)

    def loss(self, encoded: list[EncodedPair], batch: Batch, inputs: dict[str, Tensor]) -> Tensor:
        """Return the cross-entropy over the units of a."""
        logits = unit_logits(self.model, inputs, encoded)
        rows = map(alignment_labels, encoded, batch)
        labels = torch.tensor(list(chain(*rows)), dtype=torch.long, device=logits.device)
        logits, labels = logits[labels != NO_LABEL], labels[labels != NO_LABEL]
        if not self.training:
            self.metrics.update(logits.softmax(dim=-1)[:, 0], 1 - labels)
        if not len(labels):
            return logits.sum()
        return cross_entropy(logits.float(), labels)


class RegressionAlignerTrainer(AlignerTrainer):
    """Trainer of the regression aligner R: how much of a is supported by b.

    `RegressionAligner` loads its folder. Losses are mean squared errors. Validation also logs
    `val_mse` (lower is better) and `val_pearson` (-1 to 1, higher is better).

    Args:
        encoder: See `AlignerTrainer`.
        folder: See `AlignerTrainer`.
        learning_rate: See `AlignerTrainer`.
        weight_decay: See `AlignerTrainer`.
        unit: See `AlignerTrainer`.
        layers: See `AlignerTrainer`.
        frozen_layers: See `AlignerTrainer`.
        b_first: See `AlignerTrainer`.
        target: Value to predict: the share of a's aligned words (`"mean"`), or their number without
            stop words (`"sum"`), for dialog.
        stop_words: Words that the sum leaves out: a file with one word per line, or a list; None
            uses `ENGLISH_STOP_WORDS`.
    """

    selected_by = ("val_loss", -1)

    def __init__(
        self,
        encoder: str = "minilm-l6",
        folder: str = "runs/aligner",
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
        unit: Unit = "word",
        target: Literal["mean", "sum"] = "mean",
        stop_words: str | list[str] | None = None,
        layers: int | None = None,
        frozen_layers: int = 0,
        b_first: bool | None = None,
    ) -> None:
        super().__init__(
            encoder, folder, learning_rate, weight_decay, unit, layers, frozen_layers, b_first
        )
        self.target = target
        self.stop_words = read_stop_words(stop_words)

    def new_metrics(self) -> MetricCollection:
        """Return the squared error and Pearson correlation of the predictions."""
        return MetricCollection({"val_mse": MeanSquaredError(), "val_pearson": PearsonCorrCoef()})

    def load_encoder(self, location: str) -> PreTrainedModel:
        """Load the encoder with a new head of one output."""
        head = {"num_labels": 1, "problem_type": "regression"}
        return AutoModelForSequenceClassification.from_pretrained(location, **head, **_LOADED)

    def loss(self, encoded: list[EncodedPair], batch: Batch, inputs: dict[str, Tensor]) -> Tensor:
        """Return the squared error of the mean or sum of a's labels."""
        predictions = self.model(**inputs).logits.squeeze(-1)
        targets = torch.tensor(list(map(self._target, encoded, batch)), device=predictions.device)
        if not self.training:
            self.metrics.update(predictions, targets)
        return mse_loss(predictions, targets)

    def _target(self, encoded: EncodedPair, pair: AlignmentPair) -> float:
        labels = alignment_labels(encoded, pair)
        counted = [label != NO_LABEL for label in labels]
        if self.target == "mean":
            return sum(compress(labels, counted)) / max(1, sum(counted))
        content = content_tokens(pair.a, encoded.spans, self.stop_words)
        return float(sum(compress(labels, counted & content)))


def alignment_labels(encoded: EncodedPair, pair: AlignmentPair) -> list[int]:
    """Return one label per unit of a: 1 if b supports it, 0 if it overlaps a hallucinated span.

    `NO_LABEL` if it does not overlap a hallucinated span, but a span without a label.
    """

    def overlaps(unit: Span, spans: Sequence[Span]) -> bool:
        return any(unit[0] < last and first < unit[1] for first, last in spans)

    return [
        0 if overlaps(unit, pair.hallucinated) else NO_LABEL if overlaps(unit, pair.unknown) else 1
        for unit in encoded.spans
    ]


def freeze_layers(model: PreTrainedModel, count: int, name: str) -> None:
    """Exclude the embeddings and the first `count` layers from training.

    Raises:
        ValueError: The model has fewer layers.
    """
    total = model.config.num_hidden_layers
    if count > total:
        raise ValueError(f"frozen_layers = {count} must be 0 to {total}, the layers of {name!r}")
    stack = next(m for m in model.modules() if isinstance(m, ModuleList) and len(m) == total)
    # Of an encoder with the normalisation after them.
    embeddings = getattr(model.base_model, "embeddings", model.get_input_embeddings())
    for module in [embeddings, *stack[:count]]:
        module.requires_grad_(False)
