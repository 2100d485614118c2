"""Alignment: training the aligners D and R of CTC from automatically built data.

The pieces of `configs/alignment/*.yaml`, after Deng et al. (2021),
https://arxiv.org/abs/2109.06379, sec. 3.2. Copy this file to change them.
"""

from __future__ import annotations

import math
import random
import shutil
from abc import abstractmethod
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, BinaryF1Score
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from ctrlreward.models.pairs import EncodedPair, encode_pairs, pad_pairs
from ctrlreward.models.texts import max_tokens
from ctrlreward.models.trained_aligner import ALIGNED
from ctrlreward.models.weights import load_tokenizer, resolve
from ctrlreward.recipes.alignment_data import AlignmentPair
from ctrlreward.recipes.alignment_file import PairFile, read_pairs

Batch = list[AlignmentPair]


class AlignmentData(pl.LightningDataModule):
    """Pairs of texts with labelled tokens, built from plain texts at the first run.

    Args:
        pairs: The file and what it is built from.
        validation_share: Of the texts, put aside with all their pairs.
        batch_size: Pairs a step.
        seed: Of the split and the order.
    """

    def __init__(
        self,
        pairs: PairFile,
        validation_share: float = 0.05,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.file = pairs
        self.validation_share = validation_share
        self.batch_size = batch_size
        self.seed = seed
        self.pairs: dict[str, list[AlignmentPair]] = {}

    def prepare_data(self) -> None:
        """Builds the file, or what is missing of it; one process does."""
        self.file.build()

    def setup(self, stage: str) -> None:
        """Reads the file and puts validation texts aside."""
        pairs = read_pairs(self.file.file)
        sources = sorted({pair.source for pair in pairs})
        random.Random(self.seed).shuffle(sources)
        aside = set(sources[: max(1, round(self.validation_share * len(sources)))])
        self.pairs["validation"] = [pair for pair in pairs if pair.source in aside]
        self.pairs["train"] = [pair for pair in pairs if pair.source not in aside]

    def train_dataloader(self) -> DataLoader[AlignmentPair]:
        """Lists of `batch_size` pairs, in a new order each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[AlignmentPair]:
        """Lists of `batch_size` pairs of the texts that were put aside."""
        return self._loader("validation", shuffle=False)

    def _loader(self, split: str, shuffle: bool) -> DataLoader[AlignmentPair]:
        return DataLoader(
            self.pairs[split],  # type: ignore[arg-type]
            self.batch_size,
            shuffle,
            collate_fn=list,
            generator=torch.Generator().manual_seed(self.seed),
        )


class _AlignerTrainer(pl.LightningModule):
    """What both trainings share: pairs in, a step of AdamW, the best folder kept.

    Args:
        encoder: Pretrained encoder to start from: local folder, hub id or short name.
        folder: Where the trained model is written: after each validation that is the best so far.
        learning_rate: Of AdamW; it rises over the first tenth of the steps, then falls to 0.
        weight_decay: Of AdamW.
    """

    model: PreTrainedModel

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
        self.best = math.inf

    @abstractmethod
    def load_encoder(self, location: str) -> PreTrainedModel:
        """The encoder with a new head."""

    @abstractmethod
    def loss(self, encoded: list[EncodedPair], batch: Batch, logits: Tensor) -> Tensor:
        """Mean loss of a batch; in validation the metrics are brought up to date."""

    def configure_model(self) -> None:
        """Loads the encoder."""
        self.tokenizer = load_tokenizer(self.encoder)
        self.model = self.load_encoder(resolve(self.encoder)).train()  # it comes in eval mode
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

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Logs `train_loss`."""
        loss = self._judge(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs `val_loss`."""
        loss = self._judge(batch)
        self.log("val_loss", loss, prog_bar=True, batch_size=len(batch), sync_dist=True)

    def on_validation_end(self) -> None:
        """Writes the folder if this validation is the best."""
        if self.trainer.sanity_checking:
            return
        loss = self.trainer.callback_metrics["val_loss"].item()
        if loss < self.best:
            self.best = loss
            self._save()

    def on_fit_end(self) -> None:
        """Writes the folder where no validation has."""
        if math.isinf(self.best):
            self._save()

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
        """Beside the folder first, so that one that exists is whole."""
        if not self.trainer.is_global_zero:
            return
        folder = Path(self.folder).expanduser()
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        self.model.save_pretrained(unfinished)
        self.tokenizer.save_pretrained(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


class TokenAlignerTrainer(_AlignerTrainer):
    """Trains D: for each token of a whether b bears it out. `TokenAligner` loads its folder.

    Logs `val_f1_hallucinated` (of the tokens that are not borne out, at probability 0.5) and
    `val_auc` beside the losses, which are cross-entropies over tokens.
    """

    def configure_model(self) -> None:
        """Loads the encoder and the metrics."""
        super().configure_model()
        self.f1 = BinaryF1Score()
        self.auc = BinaryAUROC()

    def load_encoder(self, location: str) -> PreTrainedModel:
        """The encoder with a new head of two labels."""
        labels = {0: "hallucinated", 1: ALIGNED}
        return AutoModelForTokenClassification.from_pretrained(
            location,
            id2label=labels,
            label2id={label: place for place, label in labels.items()},
            use_safetensors=True,
            dtype=torch.float32,
        )

    def loss(self, encoded: list[EncodedPair], batch: Batch, logits: Tensor) -> Tensor:
        """Cross-entropy of a's tokens."""
        own = torch.zeros(logits.shape[:2], dtype=torch.bool)
        for row, pair in zip(own, encoded, strict=True):
            row[list(pair.places)] = True
        rows = [aligned(pair, given) for pair, given in zip(encoded, batch, strict=True)]
        labels = torch.tensor(list(chain(*rows)), dtype=torch.long, device=logits.device)
        chosen = logits[own.to(logits.device)]
        if not self.training:
            wrong = chosen.softmax(dim=-1)[:, 0]
            self.f1(wrong, 1 - labels)
            self.auc(wrong, 1 - labels)
            self.log_dict({"val_f1_hallucinated": self.f1, "val_auc": self.auc})
        return cross_entropy(chosen, labels)


class RegressionAlignerTrainer(_AlignerTrainer):
    """Trains R: how much of a is borne out by b. `RegressionAligner` loads its folder.

    Logs `val_mse` and `val_pearson` beside the losses, which are squared errors.

    Args:
        encoder: Pretrained encoder to start from: local folder, hub id or short name.
        folder: Where the trained model is written: after each validation that is the best so far.
        learning_rate: Of AdamW; it rises over the first tenth of the steps, then falls to 0.
        weight_decay: Of AdamW.
        target: What is estimated: the share of a's tokens that are aligned, or their number.
    """

    def __init__(
        self,
        encoder: str = "minilm-l6",
        folder: str = "runs/aligner",
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
        target: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(encoder, folder, learning_rate, weight_decay)
        self.target = target

    def configure_model(self) -> None:
        """Loads the encoder and the metrics."""
        super().configure_model()
        self.mse = MeanSquaredError()
        self.pearson = PearsonCorrCoef()

    def load_encoder(self, location: str) -> PreTrainedModel:
        """The encoder with a new head of one output."""
        return AutoModelForSequenceClassification.from_pretrained(
            location,
            num_labels=1,
            problem_type="regression",
            use_safetensors=True,
            dtype=torch.float32,
        )

    def loss(self, encoded: list[EncodedPair], batch: Batch, logits: Tensor) -> Tensor:
        """Squared error of the mean or sum of a's labels."""
        labels = [aligned(pair, given) for pair, given in zip(encoded, batch, strict=True)]
        sums = torch.tensor([float(sum(row)) for row in labels], device=logits.device)
        counts = torch.tensor([max(1, len(row)) for row in labels], device=logits.device)
        wanted = sums / counts if self.target == "mean" else sums
        values = logits.squeeze(-1)
        if not self.training:
            self.mse(values, wanted)
            self.pearson(values, wanted)
            self.log_dict({"val_mse": self.mse, "val_pearson": self.pearson})
        return mse_loss(values, wanted)


def aligned(encoded: EncodedPair, pair: AlignmentPair) -> list[int]:
    """For each token of a 1 where b bears it out, 0 where a hallucinated span touches it."""
    return [
        int(not any(start < last and first < end for first, last in pair.hallucinated))
        for start, end in encoded.spans
    ]
