"""Keeping the checkpoints with the best held-out score."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.monitoring import (
    MonitorMixin,
    rule_errors,
)
from ctrlreward.callbacks.saving import SelectingCheckpointMixin
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection import BestRule


class RewardCheckpointMixin(MonitorMixin, SelectingCheckpointMixin):
    """Checkpoint callback that keeps the best held-out scores, and a `last.ckpt` per validation.

    `RewardCheckpoint("score/quality", trainable_only=True)` writes the parameters that train, such
    as LoRA adapters, without the frozen model around them. Resuming and testing need nothing else;
    elsewhere, load a file with `MyModule.load_from_checkpoint(path, strict=False)`.

    Decides by `ctrlreward.selection.BestRule` at the end of each validation; under a distributed
    strategy by the values of rank 0. A killed run resumes from its last validation with
    `ckpt_path="last"` if both runs have the same folder: set `dirpath`, or use a logger with a
    fixed version. If it resumes with other held-out prompts or completions, the best checkpoint so
    far is no longer compared with, and stays on disk. `ctrlreward select` finds the folder by the
    `decisions.json` in that of the log.

    If the module is an `AdapterExporter`, the adapter of each checkpoint is in
    `<checkpoint without .ckpt>-adapter/` and is removed with it. A local checkpoint is complete or
    absent, even if the run is killed. Under FSDP it is a folder if each rank saves its shard.

    Further arguments are as in `BestRule`.

    Args:
        monitor: Logged key of the score.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that
            the trainer's `GenerationScorer` declares for the score; other keys need one.
        dirpath: Local folder. Defaults to `checkpoints` in the logger's folder, or in the trainer's
            `default_root_dir`.
        filename: Lightning's template with metric names written out (`"step={step}"`). Defaults to
            `step=000123-<score>=0.873`, with the part of the key after its last slash.
        save_top_k: Number of checkpoints to keep, -1 for all.
        save_last: Write `last.ckpt`.
        verbose: Log each decision.
        constraints: Logged key → smallest and largest allowed value, both inclusive, None for no
            bound.
        trainable_only: Leave parameters without `requires_grad` out of every checkpoint.

    Attributes:
        best_adapter_path: Adapter folder of `best_model_path`, "" if there is none.
        selected_step: Step of `best_model_path`, None if no validation met the constraints.
        state: The `BestState` with steps and scores of the kept checkpoints.

    Raises:
        MisconfigurationException: A setting is out of range, contradicts the score's direction, or
            lacks for a key without a declared one; a remote `dirpath` for a module with an adapter;
            a key that is not logged (lists the logged keys).

    Examples:
        >>> from ctrlreward.callbacks import RewardCheckpoint
        >>> bounds = {"score/repetition": (None, 0.5)}
        >>> RewardCheckpoint("score/quality", constraints=bounds).selected_step is None
        True
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: Mode | None = None,
        dirpath: str | None = None,
        filename: str | None = None,
        save_top_k: int = 1,
        save_last: bool = True,
        verbose: bool = False,
        constraints: Mapping[str, tuple[float | None, float | None]] | None = None,
        level: float = 0.05,
        trainable_only: bool = False,
    ) -> None:
        leaf = str(monitor).rsplit("/", 1)[-1]
        super().__init__(
            dirpath=dirpath,
            filename=filename or f"step={{step:06d}}-{leaf}={{{monitor}:.3f}}",
            monitor=monitor,
            mode=mode or "max",
            save_top_k=save_top_k,
            save_last=save_last,
            verbose=verbose,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,
        )
        with rule_errors(self):
            self.decide_by(BestRule(monitor, mode, save_top_k, constraints or {}, level))
        self.trainable_only = trainable_only
        self.constraints = dict(self.rule.constraints)
        self._paths: dict[int, str] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return Lightning's state, and steps, scores and paths of the kept checkpoints."""
        return {**super().state_dict(), **self.decider.to_dict(), "paths": dict(self._paths)}

    def settings(self) -> BestRule:
        """Return the rule; Lightning has another name for the number of checkpoints."""
        return replace(super().settings(), top_k=self.save_top_k)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state. `on_train_start` checks which files exist."""
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})
        if self.dirpath != state_dict["dirpath"]:  # another folder has its own last file
            self.last_model_path = ""
        self.decider.load(state_dict)
        self._paths = dict(state_dict["paths"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the kept files that are gone; a folder may have been moved."""
        super().on_train_start(trainer, pl_module)
        folders = [str(self.dirpath), os.path.dirname(trainer.ckpt_path or "")]
        paths = on_rank_zero(lambda: {step: _found(p, folders) for step, p in self._paths.items()})
        for step, path in paths.items():
            if not path:
                rank_zero_warn(f"{self._paths[step]} no longer exists and is not selected")
        self._paths = {step: path for step, path in paths.items() if path}
        if len(self._paths) < len(paths):
            self.decider.state = self.rule.available(self.state, self._paths)
            self.show_kept({}, None)
            self.kth_best_model_path = ""
        self._set_lightning_attributes()

    def select(self, trainer: Trainer) -> None:
        """Save the checkpoint if it is among the best, and remove the ones that it replaces."""
        if self.save_top_k == 0:
            return
        rule, step = self.rule, trainer.global_step
        metrics, decision = self.judge(trainer)
        if self.verbose:
            rank_zero_info(f"{type(self).__name__} at step {step}: {decision.reason}")
        dropped = [self._paths.pop(old) for old in decision.dropped]
        if decision.keep:
            names = self.logged_metrics(trainer)
            names[rule.monitor] = torch.tensor(metrics[rule.monitor])
            self._paths[step] = self.free_path(names, trainer, dropped[0] if dropped else None)
            self.current_score = torch.tensor(metrics[rule.monitor], dtype=torch.float64)
        # Without those of a reference that other prompts have replaced, which stay on disk.
        self._paths = {old: path for old, path in self._paths.items() if old in self.state.kept}
        self._set_lightning_attributes()
        # Written before another is removed, so that a killed run has all checkpoints to keep.
        saved = self._paths[step] if decision.keep else ""
        if saved:
            self.save(trainer, saved)
        for path in set(dropped) - set(self._paths.values()):
            if self.may_remove(trainer, path, saved):
                self.remove(trainer, path)

    def _set_lightning_attributes(self) -> None:
        best, worst = self.selected_step, self.rule.worst(self.state)
        if best is None or worst is None:
            return
        kept = {self._paths[step]: score for step, score in self.state.kept.items()}
        self.show_kept(kept, self._paths[best])
        self.kth_best_model_path = self._paths[worst]
        self.kth_value = self.best_k_models[self.kth_best_model_path]


def _found(path: str, folders: Sequence[str]) -> str:
    """Return the path if it exists, or the file of its name in a folder; "" without one."""
    others = (os.path.join(folder, os.path.basename(path)) for folder in folders if folder)
    return next((each for each in (path, *others) if "://" in each or os.path.exists(each)), "")
