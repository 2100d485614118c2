"""What the trainings of both aligners share: pairs in, a model that transformers loads out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torchmetrics import MetricCollection
from transformers import PreTrainedModel

from ctrlreward.files import whole_folder
from ctrlreward.models.pairs import EncodedPair, encode_pairs, pad_pairs
from ctrlreward.models.tokenization import max_tokens
from ctrlreward.recipes.alignment.pairs import AlignmentPair
from ctrlreward.weights.loading import load_tokenizer
from ctrlreward.weights.sources import resolve

Batch = list[AlignmentPair]


class AlignerTrainer(pl.LightningModule, ABC):
    """What both trainings share: pairs in, a step of AdamW, the best folder kept.

    Of a pair that is longer than the encoder reads, the end of b is left out.

    Args:
        encoder: Pretrained encoder to start from: local folder, hub id or short name.
        folder: Where the trained model is written: after each validation of a fit that is the best
            so far, or at its end where none ran. A folder with a model in it is replaced, one with
            something else is refused.
        learning_rate: Of AdamW; it rises over the first tenth of the steps, then falls to 0.
        weight_decay: Of AdamW.
    """

    # From configure_model on.
    model: PreTrainedModel
    metrics: MetricCollection

    def __init__(
        self,
        encoder: str = "minilm-l6",
        folder: str = "runs/aligner",
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.folder = folder
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.best: float | None = None  # before the first validation

    @abstractmethod
    def load_encoder(self, location: str) -> PreTrainedModel:
        """The encoder with a new head."""

    @abstractmethod
    def new_metrics(self) -> MetricCollection:
        """Of a validation."""

    @abstractmethod
    def loss(self, encoded: list[EncodedPair], batch: Batch, logits: Tensor) -> Tensor:
        """Mean loss of a batch; in validation the metrics are brought up to date."""

    def configure_model(self) -> None:
        """Loads the encoder, once: Lightning asks before each fit and each validation."""
        if "model" in dict(self.named_children()):
            return
        self.tokenizer = load_tokenizer(self.encoder)
        self.model = self.load_encoder(resolve(self.encoder)).train()  # it comes in eval mode
        self.metrics = self.new_metrics()
        self.limit = max_tokens(self.tokenizer, self.model.config)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW, whose rate rises and falls."""
        optimizer = torch.optim.AdamW(
            self.model.parameters(), self.learning_rate, weight_decay=self.weight_decay
        )
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = max(1, steps // 10)

        def rate(step: int) -> float:
            return min((step + 1) / warmup, max(0.0, (steps - step) / max(1, steps - warmup)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Refuses a folder that must not be replaced, before anything is trained."""
        self._checked_folder()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Logs `train_loss`."""
        loss = self._judge(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs `val_loss` and the metrics."""
        loss = self._judge(batch)
        self.log_dict(self.metrics, batch_size=len(batch))
        self.log("val_loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def on_validation_end(self) -> None:
        """Writes the folder if this validation of a fit is the best."""
        if self.trainer.sanity_checking or self.trainer.state.fn != "fit":
            return
        if self.best is None:
            self.best = math.inf
        loss = self.trainer.callback_metrics["val_loss"].item()
        if loss < self.best:  # which NaN never is
            self.best = loss
            self._save()

    def on_fit_end(self) -> None:
        """Writes the folder where no validation ran; warns where none had a loss."""
        if self.best is None:
            self._save()
        elif math.isinf(self.best):
            rank_zero_warn(f"no validation had a finite loss: {self.folder} was not written")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the best loss, so that a resumed run overwrites the folder only with a better."""
        checkpoint["best_val_loss"] = self.best

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the best loss over."""
        self.best = checkpoint["best_val_loss"]

    def _judge(self, batch: Batch) -> Tensor:
        encoded = encode_pairs(self.tokenizer, [(p.a, p.b) for p in batch], self.limit)
        inputs = pad_pairs(encoded, self.tokenizer.pad_token_id or 0, self.device)
        return self.loss(encoded, batch, self.model(**inputs).logits)

    def _save(self) -> None:
        trial = self.trainer.fast_dev_run  # type: ignore[attr-defined]  # set by name
        if trial or not self.trainer.is_global_zero:
            return
        with whole_folder(self._checked_folder()) as folder:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _checked_folder(self) -> Path:
        folder = Path(self.folder).expanduser()
        held = not folder.is_dir() or any(folder.iterdir())
        if folder.exists() and held and not (folder / "config.json").is_file():
            raise ValueError(
                f"folder = {self.folder!r} is there and holds no model: it would be replaced, so "
                "name a folder that is empty or new"
            )
        return folder
