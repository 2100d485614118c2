"""Base of the trainers of scoring models: the optimizer, and the folder of the best model."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig

from ctrlreward.files import whole_folder, write_whole

Data = TypeVar("Data", bound=pl.LightningDataModule)


class ModelTrainer(pl.LightningModule, Generic[Data]):
    """Training that writes the best epoch's model to a folder, evaluated as it will be used.

    The best epoch is chosen by the trainer's `ModelCheckpoint`; without one, it is the last. With
    `fast_dev_run`, nothing is written. An earlier model in the folder is replaced.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder).expanduser()

    @abstractmethod
    def write_model(self, folder: Path) -> dict[str, Any]:
        """Write the model to an empty folder, and return the content of its `evaluation.json`."""

    @property
    def data(self) -> Data:
        """The data module of the training."""
        data: Data = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    def check_replaceable(self, stage: str) -> None:
        """Raise a ValueError before a fit if the folder has something other than such a model."""
        written = (self.folder / "evaluation.json").is_file()
        if stage == "fit" and self.folder.exists() and not written:
            raise ValueError(
                f"folder must be new or have the evaluation.json of a trained model, got "
                f"{str(self.folder)!r}, which would be deleted"
            )

    def warmed_adamw(
        self, learning_rate: float, weight_decay: float, warmup_share: float
    ) -> OptimizerLRSchedulerConfig:
        """Return AdamW, without decay of biases and norms, with linear warm-up and decay to 0."""
        weights = list(self.parameters())
        groups = [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": weight_decay},
            {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, learning_rate, fused=True)
        return self.warmed(optimizer, warmup_share)

    def warmed(
        self, optimizer: torch.optim.Optimizer, warmup_share: float
    ) -> OptimizerLRSchedulerConfig:
        """Return an optimizer with linear warm-up over a share of the steps, and decay to 0."""
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = max(1, int(steps * warmup_share))
        decay = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda k: min((k + 1) / warmup, (steps - k) / max(1, steps - warmup))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    def on_fit_end(self) -> None:
        if self.trainer.fast_dev_run or not self.trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path:
            best = torch.load(checkpoint.best_model_path, weights_only=True)
            self.load_state_dict(best["state_dict"])
        with whole_folder(self.folder) as folder:
            evaluation = json.dumps(self.write_model(folder), indent=1)
            write_whole(folder / "evaluation.json", evaluation)
        rank_zero_info(f"{self.folder}: {' '.join(evaluation.split())}")
