"""Training data of aligners as a Lightning data module."""

from __future__ import annotations

import random

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from ctrlreward.recipes.papers.ctc.labelled_pairs import AlignmentPair
from ctrlreward.recipes.papers.ctc.pair_file import PairFile, read_pair_file


class AlignmentData(pl.LightningDataModule):
    """Labelled pairs of texts, built from plain texts before the first run.

    Args:
        pairs: File of the pairs and the settings it is built with.
        validation_share: Share of the texts whose pairs are used for validation, above 0 and below
            1. Such a text may still occur in training as the unrelated b of another text.
        batch_size: Pairs per batch.
        seed: Seed of the split and of the order.

    Raises:
        ValueError: `validation_share` is out of range.
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
                f"validation_share = {validation_share}: give a share above 0 and below 1"
            )
        self.pair_file = pairs
        self.validation_share = validation_share
        self.batch_size = batch_size
        self.seed = seed
        self.splits: dict[str, list[AlignmentPair]] = {}

    def prepare_data(self) -> None:
        """Build or resume the file, in one process per node."""
        self.pair_file.build()

    def setup(self, stage: str) -> None:
        """Read the file and split it by source text."""
        pairs = read_pair_file(self.pair_file.file)
        sources = sorted({pair.source for pair in pairs})
        random.Random(self.seed).shuffle(sources)
        count = round(self.validation_share * len(sources))
        validation = set(sources[: max(1, min(count, len(sources) - 1))])
        self.splits["validation"] = [pair for pair in pairs if pair.source in validation]
        self.splits["train"] = [pair for pair in pairs if pair.source not in validation]

    def train_dataloader(self) -> DataLoader[AlignmentPair]:
        """Return batches as lists of pairs, in a new order each epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[AlignmentPair]:
        """Return batches as lists of validation pairs, in a fixed order."""
        return self._loader("validation", shuffle=False)

    def _loader(self, split: str, shuffle: bool) -> DataLoader[AlignmentPair]:
        return DataLoader(
            self.splits[split],  # type: ignore[arg-type]
            self.batch_size,
            shuffle,
            collate_fn=list,
            generator=torch.Generator().manual_seed(self.seed),
        )
