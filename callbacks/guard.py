"""Detection of reward hacking: the proxy rises while held-out metrics decline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.lightning_internals import state_key
from ctrlreward.callbacks.loggers.wandb_rows import (
    add_to_next_row,
    define_curves,
    log_at_validation,
    log_late,
    send_alert,
)
from ctrlreward.callbacks.monitoring import (
    DecidingMixin,
    find_scorer,
    may_stop,
    read_metrics,
    rule_errors,
)
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    callbacks_of,
)
from ctrlreward.selection import AlarmRule
from ctrlreward.selection.alarm import LEVEL, HeldOutMode, Reference


class ProxyGuardMixin(DecidingMixin):
    """Alarm on reward hacking: the optimised metric improves while a held-out metric declines.

    Decides by `ctrlreward.selection.AlarmRule`, prompt by prompt: a `GenerationScorer` must log the
    held-out metrics.

    Logs `<name>/p_value` and `<name>/alarm`, 1 if the p-value is at most `level`, else 0. When an
    alarm begins, a warning is printed, and the trainer's Weights & Biases runs get an alert. To
    exclude checkpoints under alarm, use the constraint of `RewardCheckpoint`
    `{"guard/alarm": (None, 0)}`.

    Held-out metrics come from a `GenerationScorer` listed before this callback. Without their
    scores by prompt no test is possible, which a warning says. The proxy may also come from
    `validation_step`, or from training (the last value counts, so log a mean over enough samples).
    A validation with NaN or infinity in either metric is skipped. Further arguments are as in
    `AlarmRule`.

    Args:
        proxy: Logged key of the optimised metric.
        held_out: Logged key of a metric that is not optimised, several keys, or key → "max" if
            higher is better, "min" if lower is better, "drift" if any change is a decline.
        proxy_mode: "max" if higher is better, "min" if lower is better. Defaults to the direction
            that the trainer's `GenerationScorer` or the module's `Reward` declares, and to "max"
            for `reward/total`; other keys need one.
        held_out_mode: The same for held-out metrics without a direction; or "drift".
        stop: Stop training at an alarm, on all ranks. A run resumed from there ends at once, unless
            its new settings would not raise the alarm.
        name: Prefix of the logged keys. Two guards in one trainer need different names.

    Raises:
        MisconfigurationException: A setting is out of range (also a ValueError), contradicts the
            score's direction, or lacks for a key without a declared one; a `GenerationScorer`
            listed after this callback; a key that is not logged (lists the logged keys).

    Examples:
        >>> from ctrlreward.callbacks import ProxyGuard
        >>> ProxyGuard("reward/total", ["score/quality", "score/distinct_2"], stop=True).alarm
        False
    """

    def __init__(
        self,
        proxy: str,
        held_out: str | Sequence[str] | Mapping[str, HeldOutMode],
        proxy_mode: Mode | None = None,
        held_out_mode: HeldOutMode | None = None,
        level: float = LEVEL,
        stop: bool = False,
        name: str = "guard",
        reference: Reference = "first",
        margin: float | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        settings = (level, reference, margin)
        with rule_errors(self):
            self.decide_by(AlarmRule(proxy, held_out, proxy_mode, held_out_mode, *settings))
        self.stop = stop
        self.name = name
        self._warned = False

    @property
    def alarm(self) -> bool:
        """True if the last scored validation raised an alarm."""
        return self.state.alarm

    @property
    def alarm_step(self) -> int:
        """`trainer.global_step` at the first alarm, -1 before."""
        return self.state.alarm_step

    @property
    def state_key(self) -> str:
        """Key of the values in a checkpoint."""
        held_out = list(self.rule.modes)
        return state_key(self, proxy=self.rule.proxy, held_out=held_out, name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the last validations, and the alarm."""
        return self.decider.to_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, but not the settings, of the run that wrote the checkpoint."""
        self.decider.load(state_dict)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the order and the names of callbacks."""
        super().setup(trainer, pl_module, stage)
        names = [guard.name for guard in callbacks_of(trainer, ProxyGuardMixin)]
        if names.count(self.name) > 1:
            self.refuse(f"two ProxyGuards have the name {self.name!r}. Pass name='...'.")
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for key in self.rule.keys:
            scorer = find_scorer(trainer, key)
            if scorer is not None and callbacks.index(scorer) > callbacks.index(self):
                self.refuse(
                    f"a later callback logs {key!r}. List ProxyGuard after the GenerationScorer "
                    f"named {scorer.name!r}."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Define the curves in W&B; end a resumed run that an alarm stopped and still would."""
        super().on_train_start(trainer, pl_module)
        keys = (f"{self.name}/alarm", f"{self.name}/p_value")
        define_curves(trainer, dict.fromkeys(keys), f"{self.name}/tested_step")
        if trainer.ckpt_path and self.stop and self.decider.resume().alarm:
            trainer.should_stop = True
            rank_zero_info(f"this run has already stopped: alarm at step {self.alarm_step}")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test and log, if all metrics have a new value."""
        values = self._test(trainer, wait=True)
        log_at_validation(trainer, pl_module, values)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do the same for metrics that the module has logged after the callbacks.

        A module can't log any more, so the values are given to the loggers and to later callbacks.
        """
        values = self._test(trainer, wait=False)
        if values:
            trainer.callback_metrics.update({k: torch.tensor(v) for k, v in values.items()})
            log_late(trainer, values)

    def _test(self, trainer: Trainer, wait: bool) -> dict[str, float]:
        """Return what to log; a missing key is an error unless it can still be logged."""
        if not self.is_undecided(trainer):
            return {}
        step, before = trainer.global_step, self.state
        metrics, stale, evidence = read_metrics(trainer, self._reader)
        if wait:
            stale |= {*self.rule.keys} - metrics.keys()
        decision = self.decide(trainer, metrics, stale, evidence)
        if decision.untestable and not self._warned:
            rank_zero_warn(f"ProxyGuard raises no alarm: {decision.reason}")
            self._warned = True
        if decision.p_value is None:
            return {}
        alarm = trainer.strategy.reduce_boolean_decision(decision.alarm, all=False)
        if alarm:
            self.decider.state = self.state.alarmed(step)  # possibly the alarm of another rank
        if alarm and not before.alarm:
            reason = f"ProxyGuard at step {step}: {decision.reason}"
            rank_zero_warn(reason)
            send_alert(trainer, f"{self.name}: possible reward hacking", reason)
        trainer.should_stop = trainer.should_stop or (alarm and self.stop and may_stop(trainer))
        add_to_next_row(trainer, {f"{self.name}/tested_step": step})
        return {f"{self.name}/alarm": float(alarm), f"{self.name}/p_value": decision.p_value}
