"""Detection of reward hacking: the proxy rises while a held-out metric declines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from ctrlreward.arguments import Mode, check_direction, checked_keywords
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.lightning_internals import state_key
from ctrlreward.callbacks.loggers.wandb_rows import send_alert
from ctrlreward.callbacks.monitoring import (
    find_scorer,
    is_fitting,
    read_metrics,
    resolve_mode,
    rule_errors,
)
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    misconfigured,
)
from ctrlreward.selection import AlarmRule, AlarmState
from ctrlreward.selection.alarm import LEVEL, WINDOW


@checked_keywords(
    monitor="proxy and held_out",
    mode="proxy_mode and held_out_mode",
    patience="window",
    alpha="level",
)
class ProxyGuardMixin(CallbackMixin):
    """Alarm on reward hacking: the optimised metric improves while a held-out metric declines.

    Optimise one metric (the proxy), select checkpoints by another that training never sees, and let
    this callback watch both. After each validation with new values of both, it tests the last
    `window` ones for a rise of the proxy and a decline of the held-out metric, each beyond the
    drift of a random walk (`ctrlreward.selection.AlarmRule`, `ctrlreward.functional.trend`). It
    logs `<name>/p_value`, the larger of the two p-values, and `<name>/alarm`, 1 if that is at most
    `level`, else 0. When an alarm begins, a warning is printed, and the trainer's Weights & Biases
    runs get an alert. At the default level, the 8th scored validation is the first that can raise
    an alarm.

    A metric can come from a `GenerationScorer` listed before this callback, from
    `validation_step`, or from training (the last value counts, so log a mean over enough samples).
    A validation with NaN or infinity in either metric is skipped. To exclude checkpoints under
    alarm, give `RewardCheckpoint` the constraint `{"guard/alarm": (None, 0)}`.

    Args:
        proxy: Logged key of the optimised metric.
        held_out: Logged key of the metric used for selection.
        proxy_mode: "max" if higher is better, "min" if lower is better. Defaults to the direction
            that the trainer's `GenerationScorer` or the module's `Reward` declares; other keys need
            one.
        held_out_mode: The same for the held-out metric.
        window: Number of scored validations per test, 4 to 16.
        level: Raise an alarm if both p-values are at most this. Each validation runs a test, so the
            false-alarm rate of a whole run is higher: see docs/training.md.
        stop: Stop training at an alarm, on all ranks. A run resumed from there ends at once, unless
            its new settings would not raise the alarm.
        name: Prefix of the logged keys.

    Attributes:
        values: Proxy and held-out metric of the last scored validations, oldest first.
        alarm: Whether the last scored validation raised an alarm.
        alarm_step: `trainer.global_step` at the first alarm, -1 before.

    Raises:
        ValueError: `window` or `level` out of range, or the same metric twice.
        MisconfigurationException: Unknown mode, one that contradicts the score's direction, or none
            for a key without a declared direction; a `GenerationScorer` listed after this callback;
            a key that is not logged (lists those that are).

    Examples:
        >>> from pytorch_lightning import Trainer
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> from ctrlreward.callbacks import ProxyGuard
        >>> class Module(BoringModel):
        ...     def validation_step(self, batch, batch_idx):
        ...         self.log("reward/total", float(self.current_epoch))
        ...         self.log("score/quality", -float(self.current_epoch))
        >>> guard = ProxyGuard("reward/total", "score/quality", "max", "max", stop=True)
        >>> trainer = Trainer(max_epochs=20, limit_train_batches=1, callbacks=[guard])
        >>> trainer.fit(Module())
        >>> guard.alarm, guard.alarm_step, trainer.current_epoch
        (True, 8, 8)
    """

    def __init__(
        self,
        proxy: str,
        held_out: str,
        proxy_mode: Mode | None = None,
        held_out_mode: Mode | None = None,
        window: int = WINDOW,
        level: float = LEVEL,
        stop: bool = False,
        name: str = "guard",
    ) -> None:
        super().__init__()
        self._given_modes = proxy_mode, held_out_mode
        modes: tuple[Mode, Mode] = proxy_mode or "max", held_out_mode or "max"
        with rule_errors(self):
            check_direction("proxy_mode", modes[0])
            check_direction("held_out_mode", modes[1])
        self.rule = AlarmRule(proxy, held_out, *modes, window, level)
        self.stop = stop
        self.name = name
        self.state = self.rule.start()

    @property
    def values(self) -> list[tuple[float, float]]:
        """Proxy and held-out metric of the last scored validations, oldest first."""
        return list(self.state.values)

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
        return state_key(self, proxy=self.rule.proxy, held_out=self.rule.held_out)

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the last validations, and the alarm."""
        return self.state.to_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, but not the settings, of the run that wrote the checkpoint."""
        self.state = AlarmState.from_dict(state_dict)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the modes to the scores' directions, and check the order of callbacks."""
        super().setup(trainer, pl_module, stage)
        proxy_mode, held_out_mode = self._given_modes
        self.rule = replace(
            self.rule,
            proxy_mode=resolve_mode(trainer, self.rule.proxy, proxy_mode, "proxy_mode"),
            held_out_mode=resolve_mode(trainer, self.rule.held_out, held_out_mode, "held_out_mode"),
        )
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for key in (self.rule.proxy, self.rule.held_out):
            scorer = find_scorer(trainer, key)
            if scorer is not None and callbacks.index(scorer) > callbacks.index(self):
                raise misconfigured(
                    trainer,
                    f"ProxyGuard reads {key!r}, which a later callback logs: list ProxyGuard after "
                    f"the GenerationScorer named {scorer.name!r}",
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a resumed run that an alarm had stopped, if its settings still raise it."""
        if trainer.ckpt_path is not None and self.stop:
            self.state, decision = self.rule.resume(self.state, trainer.global_step)
            trainer.should_stop = trainer.should_stop or decision.alarm

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Test and log, if both metrics have a new value."""
        if not is_fitting(trainer):
            return
        step, before = trainer.global_step, self.state
        metrics, stale = read_metrics(trainer)
        with rule_errors(self):
            self.state, decision = self.rule.update(before, step, metrics, stale)
        if decision.p_value is None:
            return
        alarm = trainer.strategy.reduce_boolean_decision(decision.alarm, all=False)
        if alarm:
            self.state = self.state.alarmed(step)  # possibly that of another rank
        if alarm and not before.alarm:
            reason = f"ProxyGuard at step {step}: {decision.reason}"
            rank_zero_warn(reason)
            send_alert(trainer, f"{self.name}: possible reward hacking", reason)
        for key, value in (("alarm", float(alarm)), ("p_value", decision.p_value)):
            pl_module.log(
                f"{self.name}/{key}",
                value,
                on_step=False,
                on_epoch=True,
                sync_dist=True,
                batch_size=1,
            )
        trainer.should_stop = trainer.should_stop or (alarm and self.stop)
