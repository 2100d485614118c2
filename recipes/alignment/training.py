"""Alignment: training the aligners D and R of CTC from automatically built data.

The pieces of `configs/alignment/*.yaml`, after Deng et al. (2021),
https://arxiv.org/abs/2109.06379, sec. 3.2. Copy this file to change them.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import Literal

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAUROC, BinaryF1Score
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from ctrlreward.models.pairs import EncodedPair
from ctrlreward.models.trained_aligner import ALIGNED
from ctrlreward.recipes.alignment.pair_file import PairFile, read_pairs
from ctrlreward.recipes.alignment.pairs import AlignmentPair
from ctrlreward.recipes.alignment.trainer import AlignerTrainer, Batch


class AlignmentData(pl.LightningDataModule):
    """Pairs of texts with labelled tokens, built from plain texts at the first run.

    Args:
        pairs: The file and what it is built from.
        validation_share: Of the texts, put aside with what was made from them; training may still
            meet such a text as the unrelated b of another. Above 0, below 1.
        batch_size: Pairs a step.
        seed: Of the split and the order.

    Raises:
        ValueError: `validation_share` is out of its range.
    """

    def __init__(
        self,
        pairs: PairFile,
        validation_share: float = 0.05,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < validation_share < 1:
            raise ValueError(
                f"validation_share = {validation_share}: give a share above 0, below 1"
            )
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
        share = round(self.validation_share * len(sources))
        aside = set(sources[: max(1, min(share, len(sources) - 1))])
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


class TokenAlignerTrainer(AlignerTrainer):
    """Trains D: for each token of a whether b bears it out. `TokenAligner` loads its folder.

    Logs `val_f1_hallucinated` (of the tokens that are not borne out, at probability 0.5) and
    `val_auc` beside the losses, which are cross-entropies over tokens.
    """

    def new_metrics(self) -> MetricCollection:
        """Both of the probability that a token is hallucinated."""
        return MetricCollection({"val_f1_hallucinated": BinaryF1Score(), "val_auc": BinaryAUROC()})

    def load_encoder(self, location: str) -> PreTrainedModel:
        """The encoder with a new head of two labels."""
        labels = {0: "hallucinated", 1: ALIGNED}
        return AutoModelForTokenClassification.from_pretrained(
            location,
            id2label=labels,
            label2id={label: place for place, label in labels.items()},
            use_safetensors=True,
            trust_remote_code=False,
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
            self.metrics.update(chosen.softmax(dim=-1)[:, 0], 1 - labels)
        return cross_entropy(chosen, labels)


class RegressionAlignerTrainer(AlignerTrainer):
    """Trains R: how much of a is borne out by b. `RegressionAligner` loads its folder.

    Logs `val_mse` and `val_pearson` beside the losses, which are squared errors.

    Args:
        encoder: Pretrained encoder to start from: local folder, hub id or short name.
        folder: Where the trained model is written: after each validation of a fit that is the best
            so far, or at its end where none ran. A folder with a model in it is replaced, one with
            something else is refused.
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

    def new_metrics(self) -> MetricCollection:
        """Both of the estimated values."""
        return MetricCollection({"val_mse": MeanSquaredError(), "val_pearson": PearsonCorrCoef()})

    def load_encoder(self, location: str) -> PreTrainedModel:
        """The encoder with a new head of one output."""
        return AutoModelForSequenceClassification.from_pretrained(
            location,
            num_labels=1,
            problem_type="regression",
            use_safetensors=True,
            trust_remote_code=False,
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
            self.metrics.update(values, wanted)
        return mse_loss(values, wanted)


def aligned(encoded: EncodedPair, pair: AlignmentPair) -> list[int]:
    """For each token of a 1 where b bears it out, 0 where a hallucinated span touches it."""
    return [
        int(not any(start < last and first < end for first, last in pair.hallucinated))
        for start, end in encoded.spans
    ]
