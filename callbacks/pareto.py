"""Keeping every checkpoint that no other one beats in all of several scores."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from ctrlreward.callbacks.checkpoint import RewardCheckpoint
from ctrlreward.callbacks.monitoring import check_mode, check_timely, is_fresh
from ctrlreward.functional.pareto import non_dominated
from ctrlreward.plots.curves import draw_front
from ctrlreward.ranks import on_rank_zero

log = logging.getLogger(__name__)

Points = dict[int, tuple[float, ...]]
"""Step of each checkpoint → its value of each metric."""

PICTURE = "front.png"


def split(points: Points, directions: Sequence[str]) -> tuple[Points, Points]:
    """Parts the points on the front from those that are dominated; both in the given order."""
    on_front = non_dominated(list(points.values()), directions)
    kept = {step: points[step] for step, keep in zip(points, on_front, strict=True) if keep}
    return kept, {step: values for step, values in points.items() if step not in kept}


class ParetoCheckpoint(RewardCheckpoint):
    """Keeps the checkpoints that no other one dominates, and `last.ckpt` at every validation.

    A checkpoint dominates another where it is at least as good in every metric and better in one.
    The dominated ones are removed, and their adapters with them. Checkpoints that are equal in
    every metric are all kept. When training ends the front is drawn to `front.png`, beside the
    checkpoints.

    A validation is judged that has logged every metric anew. One with NaN or infinity among them
    is not kept, and a warning says so. A resumed run goes on with the front of its checkpoint; a
    file of it that is gone is named in a warning and counts no more.

    Use it beside a `RewardCheckpoint` only with a `dirpath` of its own, since both write
    `last.ckpt`; `ckpt_path="last"` takes the newest, which has seen all decisions.

    Args:
        metrics: Two or more keys, as logged → "max" where higher is better, "min" where lower is.
        dirpath: A local folder; by default that of `RewardCheckpoint`. A file is named by its step
            and metrics: `step=000123-sim=0.873-pp=41.200.ckpt`.
        save_last: Write `last.ckpt`.

    Attributes:
        kept: Step → values, of the checkpoints on the front, in the order of `metrics`.
        pruned: The same of those that were dominated.
        best_model_path: The checkpoint on the front with the best value of the first metric, for
            those who need a single one.

    Raises:
        MisconfigurationException: Fewer than two metrics; an unknown direction, or one that
            contradicts the score's; a remote `dirpath`; a key that has not been logged (lists
            those that have).
    """

    def __init__(
        self, metrics: Mapping[str, str], dirpath: str | None = None, save_last: bool = True
    ) -> None:
        if len(metrics) < 2:
            raise MisconfigurationException(
                f"metrics = {dict(metrics)!r}: a front needs two metrics or more, "
                "for one there is RewardCheckpoint"
            )
        for key, direction in metrics.items():
            if direction not in ("max", "min"):
                raise MisconfigurationException(
                    f"metrics[{key!r}] = {direction!r}: give 'max' where higher is better, "
                    "'min' where lower is"
                )
        self.metrics = dict(metrics)
        first = next(iter(metrics))
        leaves = [f"{key.rsplit('/', 1)[-1]}={{{key}:.3f}}" for key in metrics]
        super().__init__(
            monitor=first,
            mode=metrics[first],
            dirpath=dirpath,
            filename="-".join(["step={step:06d}", *leaves]),
            save_top_k=-1,
            save_last=save_last,
        )
        self.kept: Points = {}
        self.pruned: Points = {}

    @property
    def state_key(self) -> str:
        """Under which a checkpoint holds the front."""
        return self._generate_state_key(metrics=self.metrics)

    def state_dict(self) -> dict[str, Any]:
        """The points, and which `last.ckpt` is this callback's own."""
        return {
            "kept": {step: list(values) for step, values in self.kept.items()},
            "pruned": {step: list(values) for step, values in self.pruned.items()},
            "last_model_path": self.last_model_path,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the points of a checkpoint; whether the files are there is seen at the start."""
        self.kept = {step: tuple(values) for step, values in state_dict["kept"].items()}
        self.pruned = {step: tuple(values) for step, values in state_dict["pruned"].items()}
        if os.path.dirname(state_dict["last_model_path"]) == str(self.dirpath):
            self.last_model_path = state_dict["last_model_path"]
        self._name_best()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks the directions against the scores', and that the folder is a local one."""
        super().setup(trainer, pl_module, stage)
        for key, direction in self.metrics.items():
            check_mode(trainer, key, direction)
        check_timely(trainer, self, self.metrics)
        if "://" in str(self.dirpath):
            raise MisconfigurationException(
                f"dirpath = {str(self.dirpath)!r}: the front is kept and drawn in a local folder, "
                "give one"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves out what was deleted since the checkpoint of a resumed run was written."""
        super().on_train_start(trainer, pl_module)
        paths = {step: self._path(step, values) for step, values in self.kept.items()}
        lost = on_rank_zero(lambda: [s for s in paths if not os.path.exists(paths[s])])
        for step in lost:
            rank_zero_warn(f"{paths[step]} is gone: it counts no more for the front")
            del self.kept[step]
        self._name_best()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws the front, also of a run that had nothing left to train."""
        if self.kept:
            on_rank_zero(self._draw)

    def _save_topk_checkpoint(
        self, trainer: pl.Trainer, monitor_candidates: dict[str, torch.Tensor]
    ) -> None:
        if not all(is_fresh(trainer, key) for key in self.metrics):
            return
        step = trainer.global_step
        # A metric that was logged without sync_dist differs by rank; the files must not.
        values = trainer.strategy.broadcast(self._values(monitor_candidates))
        bad = {k: v for k, v in zip(self.metrics, values, strict=True) if not math.isfinite(v)}
        if bad:
            said = ", ".join(f"{key} is {value}" for key, value in bad.items())
            rank_zero_warn(f"the checkpoint of step {step} is not kept: {said}")
            return
        before = self.kept
        self.kept, dominated = split({**before, step: values}, list(self.metrics.values()))
        self.pruned = {**self.pruned, **dominated}
        self._name_best()
        # The new one is written before another goes, so that a killed run has a whole front.
        if step in self.kept:
            self._save_checkpoint(trainer, self._path(step, values))
        for old in before.keys() & dominated.keys():
            self._remove_checkpoint(trainer, self._path(old, before[old]))

    def _values(self, logged: Mapping[str, torch.Tensor]) -> tuple[float, ...]:
        missing = [key for key in self.metrics if key not in logged]
        if missing:
            raise MisconfigurationException(
                f"metrics name {missing[0]!r}, which is not logged: these are {sorted(logged)}"
            )
        return tuple(logged[key].item() for key in self.metrics)

    def _path(self, step: int, values: Sequence[float]) -> str:
        shown = {key: torch.tensor(v) for key, v in zip(self.metrics, values, strict=True)}
        return self.format_checkpoint_name({**shown, "step": torch.tensor(step)})

    def _name_best(self) -> None:
        """Tells Lightning, loggers and reports of the front and of its first metric's best."""
        first = {self._path(step, v): torch.tensor(v[0]) for step, v in self.kept.items()}
        best = max if self.mode == "max" else min
        self.best_k_models = first
        self.best_model_path = best(first, key=lambda path: first[path].item()) if first else ""
        self.best_model_score = first.get(self.best_model_path)

    def _draw(self) -> None:
        try:
            draw_front(
                list(self.metrics), self.kept, self.pruned, Path(str(self.dirpath)) / PICTURE
            )
        except ImportError as error:  # no reason to fail a run that is done
            log.warning("%s", error)
