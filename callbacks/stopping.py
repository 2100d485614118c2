"""Stopping when a held-out score no longer improves."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason

from ctrlreward.callbacks.monitoring import check_mode, is_fresh


class Decision(NamedTuple):
    """What follows from one more score.

    Attributes:
        best: The best score so far.
        wait_count: Scores in a row that were no improvement.
        reason: Why to stop, or `NOT_STOPPED`.
        message: The reason in words, "" where training goes on.
    """

    best: float
    wait_count: int
    reason: EarlyStoppingReason
    message: str


def decide(
    score: float,
    best: float,
    wait_count: int,
    *,
    mode: str,
    patience: int,
    min_delta: float = 0.0,
    check_finite: bool = True,
    stopping_threshold: float | None = None,
    divergence_threshold: float | None = None,
) -> Decision:
    """Whether to stop after one more score.

    Args:
        score: The new score.
        best: The best one before it; before the first, minus infinity (plus, for "min").
        wait_count: Scores in a row before it that were no improvement.
        mode: "max" where higher is better, "min" where lower is.
        patience: Scores in a row without improvement that end training.
        min_delta: An improvement is larger than this.
        check_finite: Stop at NaN or infinity; else they count as no improvement.
        stopping_threshold: A score better than this ends training.
        divergence_threshold: A score worse than this ends training.
    """
    sign = 1.0 if mode == "max" else -1.0
    if check_finite and not math.isfinite(score):
        reason, why = EarlyStoppingReason.NON_FINITE_METRIC, f"is {score}"
    elif stopping_threshold is not None and sign * score > sign * stopping_threshold:
        reason, why = EarlyStoppingReason.STOPPING_THRESHOLD, f"reached {stopping_threshold}"
    elif divergence_threshold is not None and sign * score < sign * divergence_threshold:
        reason, why = EarlyStoppingReason.DIVERGENCE_THRESHOLD, f"passed {divergence_threshold}"
    elif sign * (score - best) > min_delta:
        return Decision(score, 0, EarlyStoppingReason.NOT_STOPPED, "")
    elif wait_count + 1 < patience:
        return Decision(best, wait_count + 1, EarlyStoppingReason.NOT_STOPPED, "")
    else:
        wait_count += 1
        reason = EarlyStoppingReason.PATIENCE_EXHAUSTED
        why = f"has not improved by more than {min_delta} in the last {wait_count} scores"
    return Decision(best, wait_count, reason, f"{why} (now {score:.4f}, best {best:.4f})")


class RewardEarlyStopping(EarlyStopping):
    """Stops training when a held-out score no longer improves.

    It acts at the end of a validation, and only of one that logged the score anew: with
    `GenerationScorer(every_n_validations=3)` two validations of three are passed over, where
    Lightning's own class would take the old value for a lack of improvement. It does not matter
    how often validation runs, nor whether the training data has an end. A run that is resumed
    decides as it would have without the break; one that had already stopped ends at once, unless
    it now has more patience or another threshold, by which it would not have stopped.

    Args:
        monitor: The key, as logged.
        mode: "max" where higher is better, "min" where lower is.
        patience: Scores in a row without improvement that end training.
        min_delta: An improvement is larger than this.
        min_steps: Never stops while `trainer.global_step` is smaller; all scores, those beyond a
            threshold too, are compared and counted meanwhile, NaN as no improvement.
        stopping_threshold: A score better than this ends training.
        divergence_threshold: A score worse than this ends training.
        check_finite: Stop at NaN (nothing could be scored) or infinity.
        verbose: Log the reason when training stops.

    Attributes:
        stopped_by: `"patience_exhausted"`, `"stopping_threshold"`, `"divergence_threshold"`,
            `"non_finite_metric"`, or None where this callback did not end training.
        stopping_reason_message: The reason in words.
        stopped_step: `trainer.global_step` then; -1 before.

    Raises:
        MisconfigurationException: An unknown mode, or one that contradicts the score's direction.
        RuntimeError: The key has not been logged; lists those that have.
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: str = "max",
        patience: int = 3,
        min_delta: float = 0.0,
        min_steps: int = 0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_finite: bool = True,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            monitor=monitor,
            mode=mode,
            patience=patience,
            min_delta=min_delta,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            check_finite=check_finite,
            verbose=verbose,
            # A score is there when a validation ends, and an epoch may never end.
            check_on_train_epoch_end=False,
        )
        self.min_steps = min_steps
        self.stopped_step = -1
        self.last_score = math.nan

    @property
    def stopped_by(self) -> str | None:
        """Why this callback ended training, None where it did not."""
        stopped = self.stopping_reason is not EarlyStoppingReason.NOT_STOPPED
        return self.stopping_reason.name.lower() if stopped else None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks the mode against the score's direction."""
        super().setup(trainer, pl_module, stage)
        check_mode(trainer, self.monitor, self.mode)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends at once a resumed run that had stopped, if it still would; else it starts anew."""
        if trainer.ckpt_path is not None and self.stopped_by is not None:
            # The last score is judged again, by the arguments that this run has.
            counted = self.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED
            decision = self._judge(trainer, self.last_score, self.wait_count - counted)
            if decision.reason is not EarlyStoppingReason.NOT_STOPPED:
                trainer.should_stop = True
                return
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message = None
        self.stopped_step = -1

    def state_dict(self) -> dict[str, Any]:
        """Lightning's, the last score, and the step of the stop."""
        return {
            **super().state_dict(),
            "last_score": self.last_score,
            "stopped_step": self.stopped_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the best score and the count of a checkpoint, and keeps its own patience."""
        self.last_score = state_dict["last_score"]
        self.stopped_step = state_dict["stopped_step"]
        super().load_state_dict({**state_dict, "patience": self.patience})

    def _should_skip_check(self, trainer: pl.Trainer) -> bool:
        trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        return trial or super()._should_skip_check(trainer) or not is_fresh(trainer, self.monitor)

    def _run_early_stopping_check(self, trainer: pl.Trainer) -> None:
        if not self._validate_condition_metric(trainer.callback_metrics):
            return
        self.last_score = trainer.callback_metrics[self.monitor].item()
        decision = self._judge(trainer, self.last_score, self.wait_count)
        stop = decision.reason is not EarlyStoppingReason.NOT_STOPPED
        if trainer.strategy.reduce_boolean_decision(stop, all=False):
            self._stop(trainer, decision)

    def _judge(self, trainer: pl.Trainer, score: float, wait_count: int) -> Decision:
        """Decides, and keeps the best score and the count; before `min_steps` nothing stops."""
        early = trainer.global_step < self.min_steps
        decision = decide(
            score,
            self.best_score.item(),
            wait_count,
            mode=self.mode,
            patience=sys.maxsize if early else self.patience,
            min_delta=abs(self.min_delta),  # Lightning keeps it negative for "min"
            check_finite=self.check_finite and not early,
            stopping_threshold=None if early else self.stopping_threshold,
            divergence_threshold=None if early else self.divergence_threshold,
        )
        self.best_score = torch.tensor(decision.best)
        self.wait_count = decision.wait_count
        return decision

    def _stop(self, trainer: pl.Trainer, decision: Decision) -> None:
        trainer.should_stop = True
        self.stopped_epoch = trainer.current_epoch
        self.stopped_step = trainer.global_step
        self.stopping_reason = decision.reason
        self.stopping_reason_message = f"{self.monitor} {decision.message}"
        if self.verbose:
            self._log_info(trainer, self.stopping_reason_message, log_rank_zero_only=True)
