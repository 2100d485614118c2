"""Keeping the checkpoints on the Pareto front of several scores."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.lightning_internals import state_key
from ctrlreward.callbacks.monitoring import (
    rule_errors,
)
from ctrlreward.callbacks.saving import SelectingCheckpointMixin
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.plots import draw_front
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection import ParetoRule, ParetoState
from ctrlreward.selection.decider import KeepsFront

log = logging.getLogger(__name__)

PICTURE = "front.png"


class ParetoCheckpointMixin(KeepsFront, SelectingCheckpointMixin):
    """Checkpoint callback that keeps the Pareto front, and a `last.ckpt` per validation.

    Decides by `ctrlreward.selection.ParetoRule`; under a distributed strategy by the values of rank
    0. Dominated checkpoints are removed with their adapters. When training ends, the front is drawn
    to `front.png` in the folder of the checkpoints.

    A validation with NaN or infinity is not kept, and a warning names the metric. A resumed run
    continues with the front of its checkpoint; a file that has been deleted is named in a warning
    and leaves the front. Next to a `RewardCheckpoint`, set a different `dirpath`, since both write
    `last.ckpt`.

    Args:
        metrics: Two or more logged keys, with or without directions:
            `{"score/sim": "max", "score/pp": "min"}` or `["score/sim", "score/pp"]`. Without, they
            have the direction that the trainer's `GenerationScorer` declares; other keys need one.
        dirpath: Local folder. Defaults to the `dirpath` of `RewardCheckpoint`. Files are named by
            step and metrics: `step=000123-sim=0.873-pp=41.200.ckpt`.
        save_last: Write `last.ckpt`.
        trainable_only: As in `RewardCheckpoint`.

    Attributes:
        kept: Step → values in the order of `metrics`, for the checkpoints on the front.
        pruned: The same for the dominated checkpoints.
        best_model_path: The checkpoint on the front with the best first metric, for code that needs
            a single one; `best_adapter_path` and `selected_step` are of it.

    Raises:
        MisconfigurationException: Fewer than two metrics; an unknown direction, or one that
            contradicts the score's; a remote `dirpath`; a key that is not logged (lists the logged
            keys).

    Examples:
        >>> from ctrlreward.callbacks import ParetoCheckpoint
        >>> ParetoCheckpoint({"score/quality": "max", "score/perplexity": "min"}).kept
        {}
    """

    def __init__(
        self,
        metrics: Mapping[str, str] | Sequence[str],
        dirpath: str | None = None,
        save_last: bool = True,
        trainable_only: bool = False,
    ) -> None:
        given: Any = metrics  # the rule rejects a string
        if not isinstance(metrics, Mapping | str):
            given = dict.fromkeys(metrics)
        with rule_errors(self):
            rule = ParetoRule(given)
        first, mode = next(iter(rule.metrics.items()))
        leaves = [f"{key.rsplit('/', 1)[-1]}={{{key}:.3f}}" for key in rule.metrics]
        super().__init__(
            monitor=first,
            mode=mode or "max",
            dirpath=dirpath,
            filename="-".join(["step={step:06d}", *leaves]),
            save_top_k=-1,
            save_last=save_last,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,
        )
        self.trainable_only = trainable_only
        self.decide_by(rule)

    @property
    def metrics(self) -> dict[str, Mode]:
        """Key → better direction."""
        return {key: mode or "max" for key, mode in self.rule.metrics.items()}

    @property
    def mode(self) -> str:
        """Better direction of the first key."""
        return next(iter(self.metrics.values())) if "decider" in vars(self) else "max"

    @mode.setter
    def mode(self, mode: str) -> None:
        """Do nothing: Lightning assigns it in its constructor."""

    @property
    def state_key(self) -> str:
        """Key of the front in a checkpoint."""
        return state_key(self, metrics=self.metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the kept and dominated points, the folder, and the path of `last.ckpt`."""
        own = {"dirpath": self.dirpath, "last_model_path": self.last_model_path}
        return {**self.decider.to_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the points. `on_train_start` checks that the files exist."""
        self.decider.load(state_dict)
        if os.path.dirname(state_dict["last_model_path"]) == str(self.dirpath):
            self.last_model_path = state_dict["last_model_path"]
        self._set_lightning_attributes()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that the folder is local."""
        super().setup(trainer, pl_module, stage)
        if "://" in str(self.dirpath):
            self.refuse(
                f"dirpath must be a local folder, in which the front is kept and drawn, got "
                f"{str(self.dirpath)!r}"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove from the front the files that were deleted before the run was resumed."""
        super().on_train_start(trainer, pl_module)
        paths = self._paths(self.state)
        lost = on_rank_zero(lambda: [step for step in paths if not os.path.exists(paths[step])])
        for step in lost:
            rank_zero_warn(f"{paths[step]} no longer exists and leaves the Pareto front")
        self.decider.state = self.rule.available(self.state, paths.keys() - {*lost})
        self._set_lightning_attributes()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the front, also of a run that was already complete."""
        if self.state.kept:
            on_rank_zero(self._draw)

    def select(self, trainer: Trainer) -> None:
        """Save the checkpoint if it is on the front, and remove dominated ones."""
        step = trainer.global_step
        before = self._paths(self.state)
        _, decision = self.judge(trainer)
        if decision.invalid:
            rank_zero_warn(f"the checkpoint of step {step} is not kept: {decision.reason}")
        after = self._paths(self.state)
        self._set_lightning_attributes()
        # Written before another is removed, so that a killed run has a complete front.
        if decision.keep:
            self.save(trainer, after[step])
        for path in {before[old] for old in decision.dropped} - set(after.values()):
            self.remove(trainer, path)

    def _paths(self, state: ParetoState) -> dict[int, str]:
        names = ("step", *self.metrics)
        return {
            step: self.format_checkpoint_name(
                {name: torch.tensor(v) for name, v in zip(names, (step, *values), strict=True)}
            )
            for step, values in state.kept.items()
        }

    def _set_lightning_attributes(self) -> None:
        paths, best = self._paths(self.state), self.selected_step
        kept = {paths[step]: values[0] for step, values in self.state.kept.items()}
        self.show_kept(kept, None if best is None else paths[best])

    def _draw(self) -> None:
        try:
            path = Path(str(self.dirpath)) / PICTURE
            names, modes = list(self.metrics), list(self.metrics.values())
            draw_front(names, self.kept, self.pruned, path, modes)
        except ImportError as error:  # must not fail a finished run
            log.warning("%s", error)
