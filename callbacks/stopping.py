"""Early stopping on a held-out score."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning_utilities.core.rank_zero import rank_zero_info

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.guard import ProxyGuardMixin
from ctrlreward.callbacks.monitoring import (
    MonitorMixin,
    may_stop,
    read_metrics,
    rule_errors,
)
from ctrlreward.lightning_package import (
    EarlyStopping,
    LightningModule,
    Trainer,
    is_instance,
    package_of,
)
from ctrlreward.selection import StopRule, StopState
from ctrlreward.selection.stopping import DECLINE, PATIENCE


class RewardEarlyStoppingMixin(MonitorMixin, EarlyStopping):
    """Early stopping that counts each held-out score once (`ctrlreward.selection.StopRule`).

    Decides at the end of a validation that logged a new score, at any validation interval. Under a
    distributed strategy all ranks stop if one decides to. A resumed run decides as an uninterrupted
    one would; if it had already stopped, it ends at once, unless its new settings (more patience,
    another threshold) would not have stopped it.

    Further arguments are as in `StopRule`. `decline` and `min_delta="noise"` need a
    score that a `GenerationScorer` logs.

    Args:
        monitor: Logged key of the score.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that
            the trainer's `GenerationScorer` declares for the score; other keys need one.
        patience: Number of scores in a row without improvement that stops training.
        min_steps: Never stop while `trainer.global_step` is smaller, nor before the trainer's
            `min_epochs` and `min_steps`.
        verbose: Log the reason when training stops.

    Attributes:
        stopped_by: As in `StopState`. Lightning's `stopping_reason`, which has no names for a
            decline and an excluded gain, says that patience is exhausted.
        stopping_reason_message: The reason in words.
        stopped_step: `trainer.global_step` at the stop, -1 before.

    Raises:
        MisconfigurationException: A setting is out of range, contradicts the score's direction, or
            lacks for a key without a declared one; the key is not logged (also a RuntimeError).

    Examples:
        >>> from ctrlreward.callbacks import RewardEarlyStopping
        >>> RewardEarlyStopping("score/quality", patience=2, min_delta="noise").stopped_by is None
        True
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: Mode | None = None,
        patience: int = 3,
        min_delta: float | Literal["noise"] = 0.0,
        min_steps: int = 0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_finite: bool = True,
        verbose: bool = False,
        decline: bool = False,
        level: float = 0.05,
    ) -> None:
        limits = (min_steps, stopping_threshold, divergence_threshold, check_finite)
        with rule_errors(self):
            rule = StopRule(monitor, mode, patience, min_delta, *limits, decline, level)
        super().__init__(
            monitor=monitor,
            mode=mode or "max",
            patience=patience,
            min_delta=0.0 if isinstance(min_delta, str) else min_delta,
            stopping_threshold=stopping_threshold,
            divergence_threshold=divergence_threshold,
            check_finite=check_finite,
            verbose=verbose,
            # Scores are logged at validation, and an epoch may never end.
            check_on_train_epoch_end=False,
        )
        # Lightning's have a sign, and no "noise".
        self.min_delta = min_delta  # type: ignore[assignment]
        self.decide_by(rule)

    @property
    def stopped_by(self) -> str | None:
        """Cause of the stop, None if this callback did not stop training."""
        return self.state.stopped_by

    @property
    def stopped_step(self) -> int:
        """`trainer.global_step` at the stop, -1 before."""
        return self.state.stopped_step

    def state_dict(self) -> dict[str, Any]:
        """Return the scores seen so far, and the stop."""
        return {**self.decider.to_dict(), "stopped_epoch": self.stopped_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, but not the settings, of the run that wrote the checkpoint."""
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.decider.load(state_dict)
        self._set_lightning_attributes()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Show the worst score of the direction as the best one so far."""
        super().setup(trainer, pl_module, stage)
        self._set_lightning_attributes()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a resumed run that had stopped, if its settings would still stop it."""
        super().on_train_start(trainer, pl_module)
        if trainer.ckpt_path is None:
            self.decider.state = self.state.running()
        elif self.decider.resume().stop:
            trainer.should_stop = True
            rank_zero_info(f"this run has already stopped: {self.state.stopping_reason}")
        self._set_lightning_attributes()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide, and stop training on all ranks if one decides to."""
        if trainer.fast_dev_run or not self.is_undecided(trainer):  # type: ignore[attr-defined]
            return
        step, before = trainer.global_step, self.state
        stop = self.decide(trainer, *read_metrics(trainer, self._reader)).stop
        if self.state is before:  # no new value
            return
        if not may_stop(trainer):
            self.decider.state, stop = self.state.running(), False
        if trainer.strategy.reduce_boolean_decision(stop, all=False):
            if not stop:
                reason = f"{self.monitor} stopped another rank"
                self.decider.state = self.state.stopped(step, None, reason)
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            if self.verbose:
                rank_zero_info(self.state.stopping_reason)
        self._set_lightning_attributes()

    def _set_lightning_attributes(self) -> None:
        """Set the attributes of Lightning's class by the state."""
        state: StopState = self.state
        self.best_score = torch.tensor(state.best)
        self.wait_count = state.wait_count
        reasons = package_of(self).load("callbacks.early_stopping.EarlyStoppingReason")
        cause = state.stopped_by or "not_stopped"
        if cause == DECLINE:  # Lightning has no name for it
            cause = PATIENCE
        self.stopping_reason = reasons[cause.upper()]
        self.stopping_reason_message = state.stopping_reason or None


def stopped_by(trainer: Trainer) -> str:
    """Return a short reason why training ended."""
    for callback in trainer.early_stopping_callbacks:
        if isinstance(callback, RewardEarlyStoppingMixin) and callback.stopped_by:
            return f"RewardEarlyStopping: {callback.stopping_reason_message}"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ProxyGuardMixin) and callback.stop and callback.alarm:
            return f"ProxyGuard: alarm at step {callback.alarm_step}"
        if is_instance(callback, "callbacks.Timer") and (callback.time_remaining() or 1.0) <= 0:
            return "max_time"
    return "max_steps" if trainer.global_step >= trainer.max_steps > 0 else "end of the data"
