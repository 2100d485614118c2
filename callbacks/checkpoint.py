"""Keeping the checkpoint with the best held-out score, and its LoRA adapter beside it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint

from ctrlreward.callbacks.monitoring import check_mode, check_timely, is_fresh
from ctrlreward.files import whole_folder, write_whole
from ctrlreward.ranks import on_rank_zero


@runtime_checkable
class AdapterExporter(Protocol):
    """A LightningModule that trains an adapter and can write it for use without Lightning."""

    def export_adapter(self, folder: str) -> None:
        """Writes the adapter to an existing, empty folder, as `peft` reads it.

        Called on rank 0 only.
        """
        ...


def adapter_folder(checkpoint: str) -> str:
    """Where the adapter of a checkpoint lies: `best.ckpt` → `best-adapter`."""
    return os.path.splitext(checkpoint)[0] + "-adapter"


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a local checkpoint beside its place and then moves it there.

    Lightning's own writes it to the system's temporary folder. Where that is another file system
    the move is a copy, and a run that is killed meanwhile leaves half a `last.ckpt`.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Writes the file, which is on the disk when this returns."""
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        content = BytesIO()
        torch.save(checkpoint, content)
        write_whole(Path(path), content.getvalue())


class RewardCheckpoint(ModelCheckpoint):
    """Keeps the checkpoints with the best held-out scores, and `last.ckpt` at every validation.

    It acts at the end of a validation. One that did not log the score anew, or logged NaN, is no
    candidate for the best; `last.ckpt` is written all the same, so that a killed run can go on
    with `ckpt_path="last"` from its last validation. For this the folder has to be the same in
    both runs: give `dirpath`, or a logger with a fixed version.

    Where the module is an `AdapterExporter`, its adapter lies beside each checkpoint in
    `<checkpoint without .ckpt>-adapter/` and is removed with it.

    A local checkpoint is there whole or not at all, whenever the run is killed: a trainer with
    Lightning's default `TorchCheckpointIO` gets `WholeCheckpointIO` in its place.

    Args:
        monitor: The key, as logged.
        mode: "max" where higher is better, "min" where lower is.
        dirpath: A local folder; by default the logger's, or the trainer's `default_root_dir`, plus
            `checkpoints`.
        filename: As Lightning's, with names written out (`"step={step}"`). By default
            `step=000123-<score>=0.873`, with the part of the key after its last slash, for a
            slash would make a folder.
        save_top_k: How many of the best are kept, -1 for all.
        save_last: Write `last.ckpt`.
        verbose: Log each decision.
        constraints: Logged key → its smallest and largest allowed value, None for no bound. A
            validation outside of one is no candidate for the best: `monitor` is maximised
            subject to them.

    Attributes:
        best_adapter_path: The adapter folder of `best_model_path`; "" where there is none.

    Raises:
        MisconfigurationException: An unknown mode, or one that contradicts the score's direction;
            a score that an overlapped `GenerationScorer` logs a validation late; a remote
            `dirpath` for a module with an adapter; a key that has not been logged (lists those
            that have).
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: str = "max",
        dirpath: str | None = None,
        filename: str | None = None,
        save_top_k: int = 1,
        save_last: bool = True,
        verbose: bool = False,
        constraints: Mapping[str, tuple[float | None, float | None]] | None = None,
    ) -> None:
        self.constraints = dict(constraints or {})
        leaf = monitor.rsplit("/", 1)[-1]
        super().__init__(
            dirpath=dirpath,
            filename=filename or f"step={{step:06d}}-{leaf}={{{monitor}:.3f}}",
            monitor=monitor,
            mode=mode,
            save_top_k=save_top_k,
            save_last=save_last,
            verbose=verbose,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,
        )

    @property
    def best_adapter_path(self) -> str:
        """The adapter folder of `best_model_path`; "" where there is none."""
        folder = adapter_folder(self.best_model_path)
        return folder if self.best_model_path and os.path.isdir(folder) else ""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks the mode against the score's direction, and that adapters can be written."""
        super().setup(trainer, pl_module, stage)
        check_mode(trainer, str(self.monitor), self.mode)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeCheckpointIO()
        check_timely(trainer, self, [str(self.monitor), *self.constraints])
        if isinstance(pl_module, AdapterExporter) and "://" in str(self.dirpath):
            raise MisconfigurationException(
                f"dirpath = {str(self.dirpath)!r}: adapters are written to local folders, give one"
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves what is among the best, and `last.ckpt`."""
        super().on_validation_end(trainer, pl_module)
        # Lightning writes last.ckpt only where the best ones changed.
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes `last.ckpt` where no validation has; Lightning would under fast_dev_run too."""
        if not self._should_skip_saving_checkpoint(trainer):
            super().on_train_end(trainer, pl_module)

    def _save_topk_checkpoint(
        self, trainer: pl.Trainer, monitor_candidates: dict[str, torch.Tensor]
    ) -> None:
        if not is_fresh(trainer, str(self.monitor)):
            return
        score = monitor_candidates.get(str(self.monitor))
        finite = score is None or torch.isfinite(score)  # a missing one is Lightning's to report
        if finite and not violated(self.constraints, monitor_candidates):
            super()._save_topk_checkpoint(trainer, monitor_candidates)

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        module = trainer.lightning_module
        if isinstance(module, AdapterExporter):
            # First, so that a checkpoint that exists has its adapter.
            on_rank_zero(lambda: _export(module, adapter_folder(filepath)))
        super()._save_checkpoint(trainer, filepath)

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        super()._remove_checkpoint(trainer, filepath)
        if trainer.is_global_zero:
            shutil.rmtree(adapter_folder(filepath), ignore_errors=True)


def violated(
    constraints: Mapping[str, tuple[float | None, float | None]],
    metrics: Mapping[str, torch.Tensor],
) -> list[str]:
    """The keys whose values lie outside their bounds; NaN does.

    Raises:
        MisconfigurationException: A key has not been logged; lists those that have.
    """
    missing = [key for key in constraints if key not in metrics]
    if missing:
        raise MisconfigurationException(
            f"constraints name {missing[0]!r}, which is not logged: these are {sorted(metrics)}"
        )
    return [
        key
        for key, (low, high) in constraints.items()
        if not (-math.inf if low is None else low)
        <= metrics[key].item()
        <= (math.inf if high is None else high)
    ]


def _export(module: AdapterExporter, folder: str) -> None:
    with whole_folder(Path(folder)) as unfinished:
        module.export_adapter(str(unfinished))
