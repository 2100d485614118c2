"""Saving of selected checkpoints, with the LoRA adapter of each next to it."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from ctrlreward.callbacks.lightning_internals import CheckpointStepsMixin
from ctrlreward.callbacks.monitoring import (
    DecidingMixin,
    ReadingMixin,
    note_decisions,
    read_metrics,
)
from ctrlreward.files import (
    remove_at_once,
    remove_unfinished,
    whole_folder,
    write_by_ranks,
    write_whole,
)
from ctrlreward.lightning_package import (
    LightningModule,
    Trainer,
    averaging_callbacks,
    callbacks_of,
    is_sharded,
    package_of,
)
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection.decider import Keeps


@runtime_checkable
class AdapterExporter(Protocol):
    """LightningModule that trains an adapter and can export it for use without Lightning.

    Examples:
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> class Policy(BoringModel):  # self.model is a peft model
        ...     def export_adapter(self, folder):
        ...         self.model.save_pretrained(folder)
        >>> isinstance(Policy(), AdapterExporter)
        True
    """

    def export_adapter(self, folder: str) -> None:
        """Write the adapter in `peft` format into an existing, empty folder; called on rank 0."""
        ...


def adapter_folder(checkpoint: str) -> str:
    """Return the adapter folder of a checkpoint: `best.ckpt` → `best-adapter`."""
    return os.path.splitext(checkpoint)[0] + "-adapter"


class WholeCheckpointIO:
    """Checkpoint IO that writes next to the target and then renames.

    Lightning's default, which it replaces while a checkpoint is written or deleted, moves a file
    from the system's temporary folder, which is not atomic between file systems.
    """

    def __init__(self, default: Any) -> None:
        self._default = default

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write the file. A local one is on disk when this returns."""
        if "://" in str(path) or storage_options is not None:
            self._default.save_checkpoint(checkpoint, path, storage_options)
            return
        content = BytesIO()
        torch.save(checkpoint, content)
        write_whole(Path(path), content.getvalue())

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a file, or the folder of a sharded checkpoint."""
        if "://" not in str(path) and Path(path).is_dir():
            remove_at_once(Path(path))
        else:
            self._default.remove_checkpoint(path)


def save_shards_whole(
    strategy: Any, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
) -> None:
    """Write the checkpoint of FSDP, which has no checkpoint IO, next to the target and rename."""
    path, save = on_rank_zero(lambda: str(filepath)), type(strategy).save_checkpoint
    if "://" in path:
        save(strategy, checkpoint, path, storage_options)
    else:
        write_by_ranks(Path(path), lambda new: save(strategy, checkpoint, new, storage_options))


@contextmanager
def whole_files(trainer: Trainer) -> Iterator[None]:
    """Let a trainer write local checkpoints atomically inside the context."""
    strategy: Any = trainer.strategy
    default = strategy.checkpoint_io
    replaces = type(default) is package_of(trainer).load("plugins.TorchCheckpointIO")
    if replaces:
        strategy.checkpoint_io = WholeCheckpointIO(default)
    if is_sharded(trainer):
        strategy.save_checkpoint = partial(save_shards_whole, strategy)
    try:
        yield
    finally:
        if replaces:
            strategy.checkpoint_io = default
        vars(strategy).pop("save_checkpoint", None)


class SelectingCheckpointMixin(Keeps, DecidingMixin, CheckpointStepsMixin, ABC):
    """Checkpoint callback whose subclasses choose by a rule of `ctrlreward.selection`."""

    trainable_only = False
    _writes_last = False
    _logged: Mapping[str, torch.Tensor] = {}  # of the checkpoint that this run resumes from

    @property
    def best_adapter_path(self) -> str:
        """Adapter folder of `best_model_path`, "" if there is none."""
        folder = adapter_folder(self.best_model_path)
        return folder if self.best_model_path and os.path.isdir(folder) else ""

    @abstractmethod
    def select(self, trainer: Trainer) -> None:
        """Decide on the checkpoint of the validation that just ended, save and remove files."""

    def judge(self, trainer: Trainer) -> tuple[dict[str, float], Any]:
        """Return rank 0's metrics, and the decision on them."""
        metrics, stale, evidence = read_metrics(trainer, self._reader)
        # A metric logged without sync_dist differs between ranks; files and paths must not.
        metrics = trainer.strategy.broadcast(metrics)
        return metrics, self.decide(trainer, metrics, stale, evidence)

    def reset(self, unused: dict[str, Any]) -> None:
        """Forget the files of an earlier run, and the folder that this run would not have."""
        self.dirpath, self.last_model_path = unused["dirpath"], ""
        self.forget_saved()
        super().reset(unused)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that adapters can be written."""
        super().setup(trainer, pl_module, stage)
        if self.trainable_only:
            if is_sharded(trainer):
                name = type(trainer.strategy).__name__
                self.refuse(f"trainable_only needs whole weights, which {name} splits")
            pl_module.strict_loading = False
        if not isinstance(pl_module, AdapterExporter):
            return
        averaging = averaging_callbacks(trainer)
        error = ""
        if is_sharded(trainer):
            error = (
                "export_adapter is called on rank 0, which has a shard of the adapter under "
                f"{type(trainer.strategy).__name__}. Use strategy='ddp', or no export_adapter."
            )
        elif averaging:
            error = (
                "a checkpoint would have the averaged weights, and the adapter next to it the "
                f"others. Leave out {type(averaging[0]).__name__}."
            )
        elif "://" in (folder := str(self.dirpath)):
            error = f"dirpath must be a local folder, to which adapters are written, got {folder!r}"
        self.refuse(error)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the logged metrics, which a callback or scheduler may read as the epoch ends."""
        checkpoint["logged_metrics"] = dict(trainer.callback_metrics)
        if self.trainable_only:
            parameters = pl_module.named_parameters(remove_duplicate=False)
            frozen = {name for name, each in parameters if not each.requires_grad}
            weights = checkpoint["state_dict"].items()
            checkpoint["state_dict"] = {k: v for k, v in weights if k not in frozen}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the logged metrics until Lightning has forgotten its own."""
        self._logged = checkpoint.get("logged_metrics", {})
        if not self.trainable_only:
            return
        trained = {name for name, each in pl_module.named_parameters() if each.requires_grad}
        if lost := trained - checkpoint["state_dict"].keys():
            self.refuse(f"the checkpoint lacks the trained {', '.join(sorted(lost)[:3])}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what a killed run left, and show its metrics as old ones."""
        super().on_train_start(trainer, pl_module)
        folders = {str(self.dirpath), os.path.dirname(trainer.ckpt_path or "")} - {""}
        log_dir = Path(trainer.log_dir or trainer.default_root_dir)

        def tidy() -> None:
            for folder in (each for each in folders if "://" not in each):
                for name in ("*.ckpt", "*-adapter"):
                    remove_unfinished(Path(folder), name)
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                own = str(self.dirpath)
                place = own if "://" in own else os.path.relpath(own, log_dir)
                note_decisions(log_dir, folders={place: self.monitor})

        on_rank_zero(tidy)
        trainer.callback_metrics.update(self._logged)
        for each in callbacks_of(trainer, ReadingMixin):
            each._reader.start(trainer)
            each._reader.note()
        self._logged = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the checkpoint if it is selected, and always `last.ckpt`."""
        self._writes_last = not self.skips_saving(trainer)  # unless `last.ckpt` has these weights
        # Step 0 and fast_dev_run have no checkpoint.
        if self.is_undecided(trainer) and trainer.global_step and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.select(trainer)
        callbacks = _selecting(trainer)
        # The last callback writes the files of all, so that they have the decision of each.
        for callback in callbacks if self is callbacks[-1] else ():
            if callback._writes_last:
                callback.save_last_checkpoint(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write `last.ckpt` if no validation has, and warn if no checkpoint was selected."""
        if not self.skips_saving(trainer):
            super().on_train_end(trainer, pl_module)
        if self.decider.step >= 0 and self.selected_step is None:
            rank_zero_warn(
                f"{type(self).__name__}: {self.rule.explain(self.state)}, so best_model_path is "
                "empty. Compare the logged values with the constraints."
            )

    def writing(self, trainer: Trainer) -> AbstractContextManager[None]:
        """Return the context in which a local checkpoint is complete or absent."""
        return whole_files(trainer)

    def before_saving(self, trainer: Trainer, path: str) -> None:
        """Export the adapter first, so that an existing checkpoint always has its adapter."""
        module = trainer.lightning_module
        if not isinstance(module, AdapterExporter):
            return

        def export() -> None:
            with whole_folder(Path(adapter_folder(path))) as folder:
                module.export_adapter(str(folder))

        on_rank_zero(export)

    def after_removal(self, trainer: Trainer, path: str) -> None:
        """Remove the adapter."""
        if trainer.is_global_zero:
            shutil.rmtree(adapter_folder(path), ignore_errors=True)

    def show_kept(self, kept: Mapping[str, float], best: str | None) -> None:
        """Set Lightning's attributes by `kept`, path → value of `monitor`, and the best path."""
        # Exact for metrics logged in float32 or float64.
        scores = {path: torch.tensor(kept[path], dtype=torch.float64) for path in kept}
        self.best_k_models = scores
        self.best_model_path = best or ""
        self.best_model_score = None if best is None else scores[best]


def selecting_checkpoint(trainer: Trainer) -> SelectingCheckpointMixin | None:
    """Return the trainer's first `RewardCheckpoint` or `ParetoCheckpoint`, None without one."""
    return next(iter(_selecting(trainer)), None)


def _selecting(trainer: Trainer) -> list[SelectingCheckpointMixin]:
    callbacks = trainer.checkpoint_callbacks
    return [each for each in callbacks if isinstance(each, SelectingCheckpointMixin)]
