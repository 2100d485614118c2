"""LightningModules that train the aligners D and R of CTC, and the callback of its Figure 7.

Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5 and appendix A. The trained folder
is a plain transformers model, which `Alignment` loads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import cross_entropy, mse_loss
from torchmetrics import MeanSquaredError, Metric, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, BinaryF1Score
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from ctrlreward.files import finite_or_none
from ctrlreward.functional.alignment import content_tokens
from ctrlreward.models.aligner import ALIGNED, word_logits
from ctrlreward.models.encoder import drop_layers
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.pairs import EncodedPair, Span, encode_pairs, pad_pairs
from ctrlreward.models.sources import TRAINED_NAMES, resolve, trained_folder
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.models.tokenization import max_tokens
from ctrlreward.ranks import on_rank_zero
from ctrlreward.ratings.correlations import correlate
from ctrlreward.ratings.rated_files import CTC_ASPECTS, read_rated
from ctrlreward.recipes.papers.ctc.pairs import AlignmentData, AlignmentPair
from ctrlreward.recipes.scoring_models.model_trainer import ModelTrainer
from ctrlreward.scorers.alignment import Alignment

NO_LABEL = -1  # of a word that the loss and the metrics leave out


class AlignerTrainer(ModelTrainer[AlignmentData]):
    """Base of both trainers: AdamW on batches of pairs, the best model kept in a folder.

    In a pair that is longer than the encoder reads, the end of b is cut off.

    Args:
        encoder: Pretrained encoder to fine-tune: local folder, hub id or short name.
        folder: Folder of the trained model, or a name in `models.sources.TRAINED_NAMES`, whose
            folder is in the cache. The model of the best validation is written at the end.
        learning_rate: Peak learning rate of AdamW, after linear warm-up over the first tenth of
            the steps and before linear decay to 0.
        layers: Number of the encoder's layers to keep, from the first; None keeps all.
        frozen_layers: Number of its first layers, embeddings included, that are not trained.
        target: What R predicts: the share of a's aligned words (`"mean"`), or their number without
            `ENGLISH_STOP_WORDS` (`"sum"`), for dialog.
    """

    # Of a subclass: the metric that selects the model, and its mode; all metrics of a validation;
    # the class of the model, and its head.
    selected_by: ClassVar[tuple[str, Literal["min", "max"]]]
    measures: ClassVar[Mapping[str, type[Metric]]]
    auto_class: ClassVar[Any]
    head: ClassVar[dict[str, Any]]

    # Set by configure_model.
    model: PreTrainedModel
    metrics: MetricCollection

    def __init__(
        self,
        encoder: str = "minilm-l6",
        folder: str = "runs/aligner",
        learning_rate: float = 1e-4,
        layers: int | None = None,
        frozen_layers: int = 0,
        target: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(str(trained_folder(folder)) if folder in TRAINED_NAMES else folder)
        self.encoder = encoder
        self.learning_rate, self.layers, self.frozen_layers = learning_rate, layers, frozen_layers
        self.target = target

    def configure_model(self) -> None:
        """Load the encoder once; Lightning calls this before each fit and each validation."""
        if "model" in dict(self.named_children()):
            return
        self.tokenizer = load_tokenizer(self.encoder)
        safe = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        location = resolve(self.encoder)
        self.model = self.auto_class.from_pretrained(location, **self.head, **safe).train()
        config = self.model.config
        config.pad_token_id = self.tokenizer.pad_token_id  # which a decoder's head skips
        # A model that reads from left to right reads b first: a word sees nothing after it.
        masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING
        decodes = not masked or getattr(config, "is_decoder", False)
        self.b_first = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and decodes
        config.update({"aligner_b_first": self.b_first})
        if self.layers is not None:
            drop_layers(self.model, self.layers, self.encoder)
        if self.frozen_layers:
            freeze_layers(self.model, self.frozen_layers)
        self.metrics = MetricCollection({name: kind() for name, kind in self.measures.items()})
        self.limit = max_tokens(self.tokenizer, config)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, self.learning_rate, weight_decay=0.01)
        return self.warmed(optimizer, 1 / 10)

    def configure_callbacks(self) -> list[pl.Callback]:
        """Return one that keeps the model of the best validation."""
        monitor, mode = self.selected_by
        folder = Path(self.trainer.default_root_dir) / "checkpoints"
        return [ModelCheckpoint(folder, monitor=monitor, mode=mode, save_weights_only=True)]

    def on_fit_start(self) -> None:
        """Raise before any training if the folder must not be replaced."""
        self.check_replaceable("fit")

    def write_model(self, folder: Path) -> dict[str, Any]:
        """Write model and tokenizer; a ValueError if the training has diverged."""
        if not all(weight.isfinite().all() for weight in self.parameters()):
            raise ValueError(f"the training diverged: {self.folder} is not written")
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        best: Any = self.trainer.checkpoint_callback
        return {self.selected_by[0]: finite_or_none(best.best_model_score)}

    def training_step(self, batch: list[AlignmentPair], batch_idx: int) -> Tensor:
        loss = self.batch_loss(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: list[AlignmentPair], batch_idx: int) -> None:
        """Log `val_loss` and the metrics."""
        loss = self.batch_loss(batch)
        self.log_dict(self.metrics, batch_size=len(batch))
        self.log("val_loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def batch_loss(self, batch: list[AlignmentPair]) -> Tensor:
        """Return the mean loss of pairs."""
        pairs = [(pair.a, pair.b) for pair in batch]
        encoded = encode_pairs(self.tokenizer, pairs, self.limit, self.b_first)
        inputs = pad_pairs(encoded, self.tokenizer.pad_token_id or 0, self.device)
        return self.loss(encoded, batch, inputs)

    @abstractmethod
    def loss(
        self, encoded: list[EncodedPair], batch: list[AlignmentPair], inputs: dict[str, Tensor]
    ) -> Tensor:
        """Return the mean loss of encoded pairs, from pairs and padded inputs."""


class TokenAlignerTrainer(AlignerTrainer):
    """Trainer of D: whether b supports each word of a, by cross-entropy; see `AlignerTrainer`.

    Validation also logs `val_f1_hallucinated` (F1 of the hallucinated words at probability 0.5),
    which selects the model, and `val_auc` (AUROC), both 0 to 1, higher is better.
    """

    selected_by = ("val_f1_hallucinated", "max")
    measures: ClassVar = {"val_f1_hallucinated": BinaryF1Score, "val_auc": BinaryAUROC}
    auto_class = AutoModelForTokenClassification
    head: ClassVar = {
        "id2label": {0: "hallucinated", 1: ALIGNED},
        "label2id": {"hallucinated": 0, ALIGNED: 1},
    }

    def loss(
        self, encoded: list[EncodedPair], batch: list[AlignmentPair], inputs: dict[str, Tensor]
    ) -> Tensor:
        logits = word_logits(self.model, inputs, encoded)
        rows = map(alignment_labels, encoded, batch)
        labels = torch.tensor([label for row in rows for label in row], device=logits.device)
        logits, labels = logits[labels != NO_LABEL], labels[labels != NO_LABEL].long()
        if not self.training:
            self.metrics.update(logits.softmax(dim=-1)[:, 0], 1 - labels)
        return cross_entropy(logits.float(), labels) if len(labels) else logits.sum()


class RegressionAlignerTrainer(AlignerTrainer):
    """Trainer of R: how much of a b supports, by the squared error; see `AlignerTrainer`.

    Validation also logs `val_mse` (lower is better) and `val_pearson` (-1 to 1, higher is better).
    """

    selected_by = ("val_loss", "min")
    measures: ClassVar = {"val_mse": MeanSquaredError, "val_pearson": PearsonCorrCoef}
    auto_class = AutoModelForSequenceClassification
    head: ClassVar = {"num_labels": 1, "problem_type": "regression"}

    def loss(
        self, encoded: list[EncodedPair], batch: list[AlignmentPair], inputs: dict[str, Tensor]
    ) -> Tensor:
        """Return the squared error of the mean or sum of a's labels."""
        predictions = self.model(**inputs).logits.squeeze(-1)
        targets = torch.tensor(list(map(self._target, encoded, batch)), device=predictions.device)
        if not self.training:
            self.metrics.update(predictions, targets)
        return mse_loss(predictions, targets)

    def _target(self, encoded: EncodedPair, pair: AlignmentPair) -> float:
        labels = torch.tensor(alignment_labels(encoded, pair))
        counted = labels != NO_LABEL
        if self.target == "mean":
            return float(labels[counted].sum()) / max(1, int(counted.sum()))
        content = torch.as_tensor(content_tokens(pair.a, encoded.spans, ENGLISH_STOP_WORDS))
        return float(labels[counted & content].sum())


class RatedAgreement(pl.Callback):
    """Correlation of an aligner's scores with human ratings at each validation (Figure 7).

    Logs `agreement/<file>_<aspect>`, Pearson's r of each aspect that a file rates, -1 to 1, higher
    is better; NaN if a side is constant. The training reads nothing of it.

    Args:
        files: Rated files, as `ctrlreward meta-eval ctc` reads them; relevance is left out.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.rated = {Path(file).stem: read_rated(Path(file)) for file in files}

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Score the files with the current model, on rank 0, and log the correlations."""
        if not trainer.sanity_checking:
            values = on_rank_zero(lambda: self._correlate(pl_module))
            pl_module.log_dict(values, batch_size=1, sync_dist=True)

    def _correlate(self, trained: Any) -> dict[str, float]:
        regression = isinstance(trained, RegressionAlignerTrainer)
        found = {}
        with TemporaryDirectory() as folder:
            trained.model.save_pretrained(folder)
            trained.tokenizer.save_pretrained(folder)
            for name, file in self.rated.items():
                judged = {CTC_ASPECTS[r]: r for r in file.ratings if r in CTC_ASPECTS}
                judged.pop("relevance", None)  # of references, by a separate aligner
                aspects: Any = [*judged]
                method: Any = "regression" if regression else "discriminative"
                scorer = Alignment(folder, aspects, method)
                scores = scorer.score(file.samples)
                for aspect, rating in judged.items():
                    agreed = correlate(scores[aspect], file.ratings[rating])
                    found[f"agreement/{name}_{aspect}"] = agreed["pearson"]
                scorer.release()
        return found


def alignment_labels(encoded: EncodedPair, pair: AlignmentPair) -> list[int]:
    """Return one label per word of a: 1 if b supports it, 0 if it overlaps a hallucinated span.

    `NO_LABEL` if it does not overlap a hallucinated span, but a span without a label.
    """

    def overlaps(word: Span, spans: Sequence[Span]) -> bool:
        return any(word[0] < last and first < word[1] for first, last in spans)

    return [
        0 if overlaps(word, pair.hallucinated) else NO_LABEL if overlaps(word, pair.unknown) else 1
        for word in encoded.spans
    ]


def freeze_layers(model: PreTrainedModel, count: int) -> None:
    """Exclude the embeddings and the first `count` layers from training."""
    total = model.config.num_hidden_layers
    if count > total:
        raise ValueError(f"frozen_layers must be 0 to {total}, the encoder's layers, got {count}")
    stack = next(m for m in model.modules() if isinstance(m, ModuleList) and len(m) == total)
    # Of an encoder with the normalisation after them.
    embeddings = getattr(model.base_model, "embeddings", model.get_input_embeddings())
    for module in [embeddings, *stack[:count]]:
        module.requires_grad_(False)
