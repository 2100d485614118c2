"""Detection of reward hacking: the proxy rises while held-out metrics decline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from ctrlreward.arguments import Mode
from ctrlreward.callbacks.monitoring import DecidingMixin, may_stop
from ctrlreward.callbacks.wandb_rows import define_curves, log_late, runs_of
from ctrlreward.lightning_package import LightningModule, Trainer, callbacks_of
from ctrlreward.selection import AlarmRule
from ctrlreward.selection.alarm import HeldOutMode
from ctrlreward.selection.decider import Decider, given_alone


class ProxyGuardMixin(DecidingMixin):
    """Alarm on reward hacking: the optimised metric improves while a held-out metric declines.

    Decides by `ctrlreward.selection.AlarmRule`, prompt by prompt: a `GenerationScorer` must log the
    held-out metrics; without their scores by prompt no test is possible, which a warning says. The
    proxy may also come from `validation_step`, or from training (the last value counts, so log a
    mean over enough samples).

    Logs `<name>/p_value` and `<name>/alarm`, 1 if the p-value is at most `level`, else 0. When an
    alarm begins, a warning is printed, and the trainer's Weights & Biases runs get an alert. To
    exclude checkpoints under alarm, use the constraint of `RewardCheckpoint`
    `{"guard/alarm": (None, 0)}`. A validation with NaN or infinity in either metric is skipped.

    Args:
        proxy: The `AlarmRule`, or the logged key of the optimised metric.
        held_out: As in `AlarmRule`.
        proxy_mode: As in `AlarmRule`; needed for a key without a declared direction. The module's
            `Reward` also declares directions, and `reward/total` is better when higher.
        held_out_mode: As in `AlarmRule`.
        stop: Stop training at an alarm. A run resumed from there ends at once, unless
            its new settings would not raise the alarm.
        name: Prefix of the logged keys. Two guards in one trainer need different names.
        settings: Further arguments of `AlarmRule`: `level`, `reference`, `margin`.

    Examples:
        >>> from ctrlreward.callbacks import ProxyGuard
        >>> ProxyGuard("reward/total", ["score/quality", "score/distinct_2"], stop=True).alarm
        False
    """

    def __init__(
        self,
        proxy: str | AlarmRule,
        held_out: str | Sequence[str] | Mapping[str, HeldOutMode] = (),
        proxy_mode: Mode | None = None,
        held_out_mode: HeldOutMode | None = None,
        stop: bool = False,
        name: str = "guard",
        **settings: Any,
    ) -> None:
        super().__init__()
        if isinstance(proxy, AlarmRule):
            rule = given_alone(proxy, held_out, proxy_mode, held_out_mode, settings)
        else:
            rule = AlarmRule(proxy, held_out, proxy_mode, held_out_mode, **settings)
        self.decider = Decider(rule)
        self.identity = {"proxy": rule.proxy, "held_out": list(rule.modes), "name": name}
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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        names = [guard.name for guard in callbacks_of(trainer, ProxyGuardMixin)]
        if names.count(self.name) > 1:
            self.refuse(f"two ProxyGuards have the name {self.name!r}. Pass name='...'.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Define the curves in W&B; end a resumed run that an alarm stopped and still would."""
        super().on_train_start(trainer, pl_module)
        keys = (f"{self.name}/alarm", f"{self.name}/p_value")
        define_curves(trainer, dict.fromkeys(keys), f"{self.name}/tested_step")
        if trainer.ckpt_path and self.stop and self.decider.resume():
            trainer.should_stop = True
            rank_zero_info(f"this run has already stopped: alarm at step {self.alarm_step}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test, if all metrics have a new value; log, warn and stop.

        A module can't log any more, so loggers and later callbacks are given the values.
        """
        step, was_alarm = trainer.global_step, self.state.alarm
        decision = self.decide(trainer)
        if decision is not None and decision.untestable and not self._warned:
            rank_zero_warn(f"ProxyGuard raises no alarm: {decision.reason}")
            self._warned = True
        if decision is None or decision.p_value is None:
            return
        if decision.alarm and not was_alarm:
            reason = f"ProxyGuard at step {step}: {decision.reason}"
            rank_zero_warn(reason)
            for logger in runs_of(trainer):
                title = f"{self.name}: possible reward hacking"
                logger.experiment.alert(title, reason, level="WARN")
        if decision.alarm and self.stop and may_stop(trainer):
            trainer.should_stop = True
        tested = {"alarm": float(decision.alarm), "p_value": decision.p_value}
        values = {f"{self.name}/{key}": value for key, value in tested.items()}
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in values.items()})
        self.snapshots.snapshot = self.snapshots.take(trainer).having(**values)
        log_late(trainer, values, {f"{self.name}/tested_step": step})
