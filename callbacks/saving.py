"""Saving of selected checkpoints, with the LoRA adapter of each next to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from ctrlreward.callbacks.lightning_internals import CheckpointStepsMixin
from ctrlreward.callbacks.monitoring import (
    DecidingMixin,
    note_decisions,
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
    is_sharded,
    package_of,
)
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection.decider import Decider, Keeps


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


class SelectingCheckpointMixin(Keeps, DecidingMixin, CheckpointStepsMixin):
    """Checkpoint callback that keeps what a rule of `ctrlreward.selection` chooses."""

    trainable_only = False
    _writes_last = False
    _logged: Mapping[str, torch.Tensor] = {}  # of the checkpoint that this run resumes from

    def __init__(self, rule: Any, trainable_only: bool, **options: Any) -> None:
        super().__init__(auto_insert_metric_name=False, save_on_train_epoch_end=False, **options)
        self.decider = Decider(rule)
        self.trainable_only = trainable_only
        self._paths: dict[int, str] = {}  # step of a kept checkpoint → its path

    @property
    def best_adapter_path(self) -> str:
        """Adapter folder of `best_model_path`, "" if there is none."""
        folder = adapter_folder(self.best_model_path)
        return folder if self.best_model_path and os.path.isdir(folder) else ""

    def state_dict(self) -> dict[str, Any]:
        """Return Lightning's state, that of the rule, and the paths of its checkpoints."""
        return {**super().state_dict(), "paths": dict(self._paths)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state. `on_train_start` checks which files exist."""
        super().load_state_dict(state_dict)
        self._paths = dict(state_dict["paths"])
        if os.path.dirname(state_dict["last_model_path"]) == str(self.dirpath):
            self.last_model_path = state_dict["last_model_path"]
        self._show()

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
        """Remove what a killed run left, and forget kept checkpoints that are gone."""
        super().on_train_start(trainer, pl_module)
        resumed = os.path.dirname(trainer.ckpt_path or "")
        own, log_dir = str(self.dirpath), Path(trainer.log_dir or trainer.default_root_dir)

        def tidy() -> dict[int, str]:
            for folder in {own, resumed} - {""}:
                for name in ("*.ckpt", "*-adapter") if "://" not in folder else ():
                    remove_unfinished(Path(folder), name)
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                place = own if "://" in own else os.path.relpath(own, log_dir)
                note_decisions(log_dir, folders={place: self.monitor})
            return {step: self.find(path, resumed) for step, path in self._paths.items()}

        paths = on_rank_zero(tidy)
        for step, path in paths.items():
            if not path:
                rank_zero_warn(f"{self._paths[step]} no longer exists and is not kept")
        self._paths = {step: path for step, path in paths.items() if path}
        self.decider.state = self.rule.available(self.state, self._paths)
        self._show()
        trainer.callback_metrics.update(self._logged)
        self.snapshots.begin(trainer, -1)  # old ones
        self._logged = {}

    def find(self, path: str, resumed: str) -> str:
        """Return where a kept checkpoint is; a folder may have been moved. "" if it is gone.

        `resumed` is the folder of the checkpoint that the run resumes from.
        """
        name = os.path.basename(path)
        found = (path, *(os.path.join(f, name) for f in (str(self.dirpath), resumed) if f))
        return next((each for each in found if "://" in each or os.path.exists(each)), "")

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

    def select(self, trainer: Trainer) -> None:
        """Save the checkpoint if the rule keeps it, and remove the ones that it replaces."""
        if self.save_top_k == 0:
            return
        step, snapshot = trainer.global_step, self.snapshots.take(trainer)
        # A metric logged without sync_dist differs between ranks; files and paths must not.
        metrics = trainer.strategy.broadcast(snapshot.metrics)
        decision = self.decide(replace(snapshot, metrics=metrics))
        if self.verbose:
            rank_zero_info(f"{type(self).__name__} at step {step}: {decision.reason}")
        elif decision.invalid:
            rank_zero_warn(f"the checkpoint of step {step} is not kept: {decision.reason}")
        dropped = [self._paths.pop(old) for old in decision.dropped]
        if decision.keep:
            values = {key: torch.tensor(metrics[key]) for key in self.rule.keys}
            names = self.logged_metrics(trainer) | values
            self._paths[step] = self.free_path(names, trainer, dropped[0] if dropped else None)
        # Without those of a reference that other prompts have replaced, which stay on disk.
        self._paths = {old: path for old, path in self._paths.items() if old in self.state.kept}
        self._show()
        # Written before another is removed, so that a killed run has all checkpoints to keep.
        saved = self._paths[step] if decision.keep else ""
        if saved:
            self.save(trainer, saved)
        for path in set(dropped) - set(self._paths.values()):
            if self.may_remove(trainer, path, saved):
                self.remove(trainer, path)

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

    def _show(self) -> None:
        """Set the attributes by which Lightning and its loggers find the checkpoints."""
        # Exact for metrics logged in float32 or float64.
        kept = {step: torch.tensor(v, dtype=torch.float64) for step, v in self.state.kept.items()}
        self.best_k_models = {self._paths[s]: v.flatten()[0] for s, v in kept.items()}
        best = self.selected_step
        self.best_model_path = "" if best is None else self._paths[best]
        self.best_model_score = None if best is None else self.best_k_models[self.best_model_path]


def selecting_checkpoint(trainer: Trainer) -> SelectingCheckpointMixin | None:
    """Return the trainer's first `RewardCheckpoint` or `ParetoCheckpoint`, None without one."""
    return next(iter(_selecting(trainer)), None)


def _selecting(trainer: Trainer) -> list[SelectingCheckpointMixin]:
    callbacks = trainer.checkpoint_callbacks
    return [each for each in callbacks if isinstance(each, SelectingCheckpointMixin)]
