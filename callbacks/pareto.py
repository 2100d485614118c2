"""Keeping the checkpoints on the Pareto front of several scores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.saving import SelectingCheckpointMixin
from ctrlreward.lightning_package import LightningModule, Trainer
from ctrlreward.selection import ParetoRule
from ctrlreward.selection.decider import KeepsFront
from ctrlreward.selection.pareto import pareto_rule


class ParetoCheckpointMixin(KeepsFront, SelectingCheckpointMixin):
    """Checkpoint callback that keeps the Pareto front, and a `last.ckpt` per validation.

    Decides by `ctrlreward.selection.ParetoRule`; under a distributed strategy by the values of rank
    0. Dominated checkpoints are removed with their adapters.

    A validation with NaN or infinity is not kept, and a warning names the metric. A resumed run
    continues with the front of its checkpoint; a file that has been deleted is named in a warning
    and leaves the front. Next to a `RewardCheckpoint`, set a different `dirpath`, since both write
    `last.ckpt`.

    Args:
        metrics: The `ParetoRule`, or its metrics: `{"score/sim": "max", "score/pp": "min"}`, or
            `["score/sim", "score/pp"]` with the directions that a scorer of the trainer declares.
        dirpath: Local folder, as in `RewardCheckpoint`. Files are named by step and metrics:
            `step=000123-sim=0.873-pp=41.200.ckpt`.
        save_last: Write `last.ckpt`.
        trainable_only: As in `RewardCheckpoint`.

    Attributes:
        kept: Step → values in the order of `metrics`, for the checkpoints on the front.
        pruned: The same for the dominated checkpoints.
        best_model_path: The checkpoint on the front with the best first metric, for code that needs
            a single one; `best_adapter_path` and `selected_step` are of it.

    Examples:
        >>> from ctrlreward.callbacks import ParetoCheckpoint
        >>> ParetoCheckpoint({"score/quality": "max", "score/perplexity": "min"}).kept
        {}
    """

    def __init__(
        self,
        metrics: Mapping[str, str] | Sequence[str] | ParetoRule,
        dirpath: str | None = None,
        save_last: bool = True,
        trainable_only: bool = False,
    ) -> None:
        rule = pareto_rule(metrics)
        first, mode = next(iter(rule.metrics.items()))
        leaves = [f"{key.rsplit('/', 1)[-1]}={{{key}:.3f}}" for key in rule.metrics]
        super().__init__(
            rule,
            trainable_only,
            monitor=first,
            mode=mode or "max",
            dirpath=dirpath,
            filename="-".join(["step={step:06d}", *leaves]),
            save_top_k=-1,
            save_last=save_last,
        )

    @property
    def metrics(self) -> dict[str, Mode]:
        """Key → better direction."""
        return {key: mode or "max" for key, mode in self.rule.metrics.items()}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.mode = next(iter(self.metrics.values()))

    def find(self, path: str, resumed: str) -> str:
        """Return where a checkpoint of the front is: in its folder, or gone."""
        own = os.path.join(str(self.dirpath), os.path.basename(path))
        return own if os.path.exists(own) else ""

    def _should_remove_checkpoint(self, trainer: Trainer, previous: str, current: str) -> bool:
        return previous != current  # the folder has the front and nothing else
