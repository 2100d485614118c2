"""Early stopping on a held-out score."""

from __future__ import annotations

from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.guard import ProxyGuardMixin
from ctrlreward.callbacks.monitoring import DecidingMixin, may_stop
from ctrlreward.lightning_package import LightningModule, Trainer, callbacks_of, is_instance
from ctrlreward.selection import StopRule
from ctrlreward.selection.decider import Decider, given_alone


class RewardEarlyStoppingMixin(DecidingMixin):
    """Early stopping that counts each held-out score once (`ctrlreward.selection.StopRule`).

    Decides at the end of a validation that logged a new score, at any validation interval, but does
    not stop before the trainer's `min_epochs` and `min_steps`. Under a distributed strategy the
    values of rank 0 decide. A resumed run decides as an uninterrupted one would; if it had already
    stopped, it ends at once, unless its new settings (more patience, another threshold) would not
    have stopped it.

    Args:
        monitor: The `StopRule`, or the logged key of the score.
        mode: As in `StopRule`; needed for a key without a declared direction.
        verbose: Log the reason when training stops.
        settings: Further arguments of `StopRule`: `patience`, `min_delta`, `min_steps`, …;
            `decline` and `min_delta="noise"` need a score that a `GenerationScorer` logs.

    Attributes:
        state: The `StopState`, which has the reason.

    Examples:
        >>> from ctrlreward.callbacks import RewardEarlyStopping
        >>> from ctrlreward.selection import StopRule
        >>> stop = RewardEarlyStopping(StopRule("score/quality", patience=2, min_delta="noise"))
        >>> stop.rule == RewardEarlyStopping("score/quality", patience=2, min_delta="noise").rule
        True
    """

    def __init__(
        self,
        monitor: str | StopRule = "score/attribute_relevance",
        mode: Mode | None = None,
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        if isinstance(monitor, StopRule):
            rule = given_alone(monitor, mode, settings)
        else:
            rule = StopRule(monitor, mode, **settings)
        self.decider = Decider(rule)
        self.identity = {"monitor": rule.monitor}
        self.verbose = verbose

    @property
    def stopped_by(self) -> str | None:
        """Cause of the stop, as in `StopState`; None if this callback did not stop training."""
        return self.state.stopped_by

    @property
    def stopped_step(self) -> int:
        """`trainer.global_step` at the stop, -1 before."""
        return self.state.stopped_step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a resumed run that had stopped, if its settings would still stop it."""
        super().on_train_start(trainer, pl_module)
        if trainer.ckpt_path is not None and self.decider.resume():
            trainer.should_stop = True
            rank_zero_info(f"this run has already stopped: {self.state.stopping_reason}")
        else:
            self.decider.state = self.state.running()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        decision = None if trial else self.decide(trainer)
        if decision is None or not decision.stop:
            return
        if not may_stop(trainer):
            self.decider.state = self.state.running()
            return
        trainer.should_stop = True
        if self.verbose:
            rank_zero_info(self.state.stopping_reason)


def stopped_by(trainer: Trainer) -> str:
    """Return a short reason why training ended."""
    for stopper in callbacks_of(trainer, RewardEarlyStoppingMixin):
        if stopper.stopped_by:
            return f"RewardEarlyStopping: {stopper.state.stopping_reason}"
    for guard in callbacks_of(trainer, ProxyGuardMixin):
        if guard.stop and guard.alarm:
            return f"ProxyGuard: alarm at step {guard.alarm_step}"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if is_instance(callback, "Timer") and (callback.time_remaining() or 1.0) <= 0:
            return "max_time"
    return "max_steps" if trainer.global_step >= trainer.max_steps > 0 else "end of the data"
