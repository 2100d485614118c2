"""Keeping the checkpoints with the best held-out score."""

from __future__ import annotations

from typing import Any

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.saving import SelectingCheckpointMixin
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.selection import BestRule
from ctrlreward.selection.decider import given_alone


class RewardCheckpointMixin(SelectingCheckpointMixin):
    """Checkpoint callback that keeps the best held-out scores, and a `last.ckpt` per validation.

    `RewardCheckpoint("score/quality", trainable_only=True)` writes the parameters that train, such
    as LoRA adapters, without the frozen model around them. Resuming and testing need nothing else;
    elsewhere, load a file with `MyModule.load_from_checkpoint(path, strict=False)`.

    Decides by `ctrlreward.selection.BestRule` at the end of each validation; under a distributed
    strategy by the values of rank 0. A killed run resumes from its last validation with
    `ckpt_path="last"` if both runs have the same folder: set `dirpath`. If it resumes with other
    held-out prompts or completions, the best checkpoint so far is no longer compared with, and
    stays on disk.

    If the module is an `AdapterExporter`, the adapter of each checkpoint is in
    `<checkpoint without .ckpt>-adapter/` and is removed with it. A checkpoint is complete or
    absent, even if the run is killed. Under FSDP it is a folder if each rank saves its shard.

    Args:
        monitor: The `BestRule`, or the logged key of the score.
        mode: As in `BestRule`; needed for a key without a declared direction.
        dirpath: Local folder. Defaults to `checkpoints` in the logger's folder, or in the trainer's
            `default_root_dir`.
        filename: Lightning's template with metric names written out (`"step={step}"`). Defaults to
            `step=000123-<score>=0.873`, with the part of the key after its last slash.
        save_top_k: `top_k` of `BestRule`; with 0, `last.ckpt` alone is written.
        save_last: Write `last.ckpt`.
        verbose: Log each decision.
        trainable_only: Leave parameters without `requires_grad` out of every checkpoint.
        settings: Further arguments of `BestRule`: `constraints`, `level`.

    Attributes:
        best_adapter_path: Adapter folder of `best_model_path`, "" if there is none.
        selected_step: Step of `best_model_path`, None if no validation met the constraints.
        state: The `BestState` with steps and scores of the kept checkpoints.

    Examples:
        >>> from ctrlreward.callbacks import RewardCheckpoint
        >>> bounds = {"score/repetition": (None, 0.5)}
        >>> RewardCheckpoint("score/quality", constraints=bounds).selected_step is None
        True
    """

    def __init__(
        self,
        monitor: str | BestRule = "score/attribute_relevance",
        mode: Mode | None = None,
        dirpath: str | None = None,
        filename: str | None = None,
        save_top_k: int = 1,
        save_last: bool = True,
        verbose: bool = False,
        trainable_only: bool = False,
        **settings: Any,
    ) -> None:
        if isinstance(monitor, BestRule):
            rule = given_alone(monitor, mode, save_top_k != 1, settings)
        else:
            rule = BestRule(monitor, mode, save_top_k, **settings)
        leaf = rule.monitor.rsplit("/", 1)[-1]
        super().__init__(
            rule,
            trainable_only,
            dirpath=dirpath,
            filename=filename or f"step={{step:06d}}-{leaf}={{{rule.monitor}:.3f}}",
            monitor=rule.monitor,
            mode=rule.mode or "max",
            save_top_k=rule.top_k,
            save_last=save_last,
            verbose=verbose,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Show Lightning and its loggers the direction that a scorer declares."""
        super().setup(trainer, pl_module, stage)
        self.mode = self.rule.mode
