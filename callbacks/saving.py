"""Saving of selected checkpoints, with the LoRA adapter of each next to it.

Private names of Lightning 2.6 that have no public hook: `_save_checkpoint` and `_remove_checkpoint`
write and delete every checkpoint; `_save_last_checkpoint` writes `last.ckpt`, which Lightning does
only if the best checkpoints changed; `_last_global_step_saved` and `_last_checkpoint_saved`, the
last file, are not forgotten for another run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from ctrlreward.callbacks.base_callback import log_folder
from ctrlreward.callbacks.monitoring import DecidingMixin, note_decisions
from ctrlreward.files import (
    remove_at_once,
    remove_unfinished,
    whole_file,
    whole_folder,
    write_by_ranks,
)
from ctrlreward.lightning_package import (
    LightningModule,
    ModelCheckpoint,
    Trainer,
    averaging_callbacks,
    callbacks_of,
    is_instance,
    is_sharded,
)
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection.decider import Decider, Keeps


@runtime_checkable
class AdapterExporter(Protocol):
    """LightningModule that trains an adapter and can export it for use without Lightning."""

    def export_adapter(self, folder: str) -> None:
        """Write the adapter in `peft` format into an existing, empty folder; called on rank 0."""
        ...


def adapter_folder(checkpoint: str) -> str:
    """Return the adapter folder of a checkpoint: `best.ckpt` → `best-adapter`."""
    return os.path.splitext(checkpoint)[0] + "-adapter"


def save_file(strategy: Any, checkpoint: Any, path: str, storage_options: Any = None) -> None:
    """Write a checkpoint on rank 0. It is on disk when this returns."""
    if strategy.is_global_zero:
        with whole_file(Path(path)) as file:
            torch.save(checkpoint, file)


def save_shards(strategy: Any, checkpoint: Any, path: str, storage_options: Any = None) -> None:
    """Write the shards of all ranks."""
    save = partial(type(strategy).save_checkpoint, strategy, checkpoint)
    write_by_ranks(Path(path), lambda unfinished: save(unfinished, storage_options))


class SelectingCheckpointMixin(Keeps, DecidingMixin, ModelCheckpoint):
    """Checkpoint callback that keeps what a rule of `ctrlreward.selection` chooses."""

    _is_sharded = _writes_last = False
    _logged: Mapping[str, torch.Tensor] = {}  # of the checkpoint that this run resumes from

    def __init__(self, rule: Any, trainable_only: bool, **options: Any) -> None:
        super().__init__(auto_insert_metric_name=False, save_on_train_epoch_end=False, **options)
        self.decider = Decider(rule)
        self.identity = {"keys": list(rule.keys)}
        self.trainable_only = trainable_only
        self._paths: dict[int, str] = {}  # step of a kept checkpoint → its path

    @property
    def best_adapter_path(self) -> str:
        """Adapter folder of `best_model_path`, "" if there is none."""
        folder = adapter_folder(self.best_model_path)
        return folder if self.best_model_path and os.path.isdir(folder) else ""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "paths": dict(self._paths)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._paths = dict(state_dict["paths"])
        if os.path.dirname(state_dict["last_model_path"]) == str(self.dirpath):
            self.last_model_path = state_dict["last_model_path"]
        self._show()

    def reset(self, unused: dict[str, Any]) -> None:
        """Forget the files of an earlier run, and the folder that this run would not have."""
        self.dirpath, self.last_model_path = unused["dirpath"], ""
        self._last_global_step_saved, self._last_checkpoint_saved = 0, ""
        super().reset(unused)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        strategy = type(trainer.strategy).__name__
        self._is_sharded = sharded = is_sharded(trainer)
        exports = isinstance(pl_module, AdapterExporter)
        if "://" in str(self.dirpath):
            self.refuse(f"dirpath must be a local folder, got {str(self.dirpath)!r}")
        if self.trainable_only:
            if sharded:
                self.refuse(f"trainable_only needs whole weights, which {strategy} splits")
            pl_module.strict_loading = False
        if exports and sharded:
            self.refuse(
                f"export_adapter is called on rank 0, which has a shard of the adapter under "
                f"{strategy}. Use strategy='ddp', or no export_adapter."
            )
        if exports and averaging_callbacks(trainer):
            self.refuse("a checkpoint would have averaged weights, and the adapter next to it not")

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
        own, resumed = str(self.dirpath), os.path.dirname(trainer.ckpt_path or "")
        place = os.path.relpath(own, log_folder(trainer))
        note_decisions(trainer, folders={place: self.monitor})

        def tidy() -> dict[int, str]:
            for name in ("*.ckpt", "*-adapter"):
                remove_unfinished(Path(own), name)
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
        places = (path, os.path.join(str(self.dirpath), name), os.path.join(resumed, name))
        return next((place for place in places if os.path.exists(place)), "")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the checkpoint if it is selected, and always `last.ckpt`."""
        # Unless `last.ckpt` has these weights.
        self._writes_last = not self._should_skip_saving_checkpoint(trainer)
        # Step 0 and fast_dev_run have no checkpoint.
        trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        if trainer.global_step and self.save_top_k and not trial:
            self.select(trainer)
        callbacks = callbacks_of(trainer, SelectingCheckpointMixin)
        # The last callback writes the files of all, so that they have the decision of each.
        for callback in callbacks if self is callbacks[-1] else ():
            if callback._writes_last:
                callback._save_last_checkpoint(trainer, callback._monitor_candidates(trainer))

    def file_exists(self, filepath: Any, trainer: Trainer) -> bool:
        """Leave `last.ckpt` to a `ModelCheckpoint` of Lightning that writes one in this folder.

        It may write later than this callback, which then takes the name `last-v1.ckpt`.
        """
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        theirs = any(
            is_instance(each, "ModelCheckpoint") and each.save_last and each.dirpath == self.dirpath
            for each in callbacks
            if not isinstance(each, SelectingCheckpointMixin)
        )
        is_last = Path(filepath).stem == self.CHECKPOINT_NAME_LAST
        return (theirs and is_last) or super().file_exists(filepath, trainer)

    def select(self, trainer: Trainer) -> None:
        """Save the checkpoint if the rule keeps it, and remove the ones that it replaces."""
        step, decision = trainer.global_step, self.decide(trainer)
        if decision is None:
            return
        if self.verbose:
            rank_zero_info(f"{type(self).__name__} at step {step}: {decision.reason}")
        elif decision.invalid:
            rank_zero_warn(f"the checkpoint of step {step} is not kept: {decision.reason}")
        dropped = [self._paths.pop(old) for old in decision.dropped]
        if decision.keep:
            metrics = self.snapshots.take(trainer).metrics
            values = {key: torch.tensor(metrics[key]) for key in self.rule.keys}
            names = self._monitor_candidates(trainer) | values
            replaced = dropped[0] if dropped else None
            path = self._get_metric_interpolated_filepath_name(names, trainer, replaced)
            self._paths[step] = path
        # Checkpoints of a reference that other prompts have replaced stay, but are not listed.
        self._paths = {old: path for old, path in self._paths.items() if old in self.state.kept}
        self._show()
        # Written before another is removed, so that a killed run has all checkpoints to keep.
        saved = self._paths[step] if decision.keep else ""
        if saved:
            self._save_checkpoint(trainer, saved)
        for path in set(dropped) - set(self._paths.values()):
            if self._should_remove_checkpoint(trainer, path, saved):
                self._remove_checkpoint(trainer, path)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write `last.ckpt` if no validation has, and warn if no checkpoint was selected."""
        if not self._should_skip_saving_checkpoint(trainer):
            super().on_train_end(trainer, pl_module)
        if self.decider.step >= 0 and self.selected_step is None:
            rank_zero_warn(
                f"{type(self).__name__}: {self.rule.explain(self.state)}, so best_model_path is "
                "empty. Compare the logged values with the constraints."
            )

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Write a checkpoint whole; the adapter comes first, so that it is always there.

        Lightning moves a file from the system's temporary folder, which is not atomic between file
        systems; FSDP writes its shards in place. Another checkpoint IO of the user stays.
        """
        module, strategy = trainer.lightning_module, cast(Any, trainer.strategy)

        def export(module: AdapterExporter) -> None:
            with whole_folder(Path(adapter_folder(filepath))) as folder:
                module.export_adapter(str(folder))

        if isinstance(module, AdapterExporter):
            on_rank_zero(lambda: export(module))
        if self._is_sharded:
            strategy.save_checkpoint = partial(save_shards, strategy)
        elif type(strategy.checkpoint_io).__name__ == "TorchCheckpointIO":
            strategy.save_checkpoint = partial(save_file, strategy)
        try:
            super()._save_checkpoint(trainer, filepath)
        finally:
            vars(strategy).pop("save_checkpoint", None)

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Delete a checkpoint and its adapter; a sharded one is also deleted whole."""
        if not os.path.isdir(filepath):
            super()._remove_checkpoint(trainer, filepath)
        elif trainer.is_global_zero:
            remove_at_once(Path(filepath))
        if trainer.is_global_zero:
            shutil.rmtree(adapter_folder(filepath), ignore_errors=True)

    def _show(self) -> None:
        """Set the attributes by which Lightning and its loggers find the checkpoints."""
        # Exact for metrics logged in float32 or float64.
        kept = {step: torch.tensor(v, dtype=torch.float64) for step, v in self.state.kept.items()}
        self.best_k_models = {self._paths[s]: v.flatten()[0] for s, v in kept.items()}
        best = self.selected_step
        self.best_model_path = "" if best is None else self._paths[best]
        self.best_model_score = None if best is None else self.best_k_models[self.best_model_path]
