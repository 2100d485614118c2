"""Noticing that a reward is being gamed: it rises while a held-out metric falls."""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

from ctrlreward.callbacks.monitoring import check_mode, find_scorer, is_fresh
from ctrlreward.functional.trend import LONGEST, Divergence, divergence

# At these, a run of 20 validations that is honest alarms in at most 5 % of the cases, also where
# the proxy rises for certain and the held-out metric is a random walk
# (benchmarks/proxy_guard_false_alarms.py).
WINDOW = 12
LEVEL = 0.01


class ProxyGuard(pl.Callback):
    """Alarms when what is optimised improves while what it stands for gets worse.

    Optimise one metric (the proxy), select on another that training never sees, and let this
    watch both. After each validation that scored both anew it tests the last ones, `window` at
    most, for a rise of the proxy and a decline of the held-out metric, each by more than a random
    walk would drift (`ctrlreward.functional.trend`). It logs `<name>/p_value`, the larger p-value
    of the two, and `<name>/alarm`, 1 where that is at most `level`, else 0; it warns on the
    console when an alarm begins. At the default level the 8th scored validation is the first that
    can be under alarm.

    A metric is one that a `GenerationScorer` logs which comes before this callback, that the
    module logs in `validation_step`, or that it logs while training (the last value counts, so
    let it be a mean over enough samples). A validation at which either is NaN is left out. To
    choose no checkpoint under alarm, give `RewardCheckpoint` the constraint
    `{"guard/alarm": (None, 0)}`.

    Args:
        proxy: The key of what is optimised, as logged.
        held_out: The key of what is selected on.
        proxy_mode: "max" where higher is better, "min" where lower is.
        held_out_mode: The same of the held-out metric.
        window: Scored validations that a test looks at, 4 to 16.
        level: A p-value this small is an alarm. The false-alarm rate of a whole run is higher,
            since each validation tests: see docs/training.md.
        stop: End training at an alarm, on every rank. A run that is resumed from there ends at
            once, unless its settings now say otherwise.
        name: Begins the logged keys.

    Attributes:
        values: Proxy and held-out metric of the last scored validations, oldest first.
        alarm: Whether the last scored validation was under alarm.
        alarm_step: `trainer.global_step` at the first alarm, -1 before.

    Raises:
        ValueError: A window or level out of range, or one metric for both.
        MisconfigurationException: An unknown mode, or one that contradicts the score's direction;
            a `GenerationScorer` that comes after this callback; a key that has not been logged
            (lists those that have).
    """

    def __init__(
        self,
        proxy: str,
        held_out: str,
        proxy_mode: str = "max",
        held_out_mode: str = "max",
        window: int = WINDOW,
        level: float = LEVEL,
        stop: bool = False,
        name: str = "guard",
    ) -> None:
        super().__init__()
        if proxy == held_out:
            raise ValueError(f"proxy and held_out are both {proxy!r}: give two metrics")
        for argument, mode in (("proxy_mode", proxy_mode), ("held_out_mode", held_out_mode)):
            if mode not in ("max", "min"):
                raise MisconfigurationException(f"{argument} = {mode!r}: give 'max' or 'min'")
        if not 4 <= window <= LONGEST:
            raise ValueError(f"window = {window}: give 4 to {LONGEST} scored validations")
        smallest = 2.0 ** (1 - window)
        if not smallest <= level < 1:
            raise ValueError(
                f"level = {level}: a window of {window} has p-values from {smallest:.2g} on, so "
                "give at least that, and less than 1"
            )
        self.proxy = proxy
        self.held_out = held_out
        self.proxy_mode = proxy_mode
        self.held_out_mode = held_out_mode
        self.window = window
        self.level = level
        self.stop = stop
        self.name = name
        self.values: list[tuple[float, float]] = []
        self.alarm = False
        self.alarm_step = -1

    @property
    def state_key(self) -> str:
        """Under which a checkpoint holds the values."""
        return self._generate_state_key(proxy=self.proxy, held_out=self.held_out)

    def state_dict(self) -> dict[str, Any]:
        """The values of the last validations, and whether there was an alarm."""
        return {
            "values": [list(pair) for pair in self.values],
            "alarm": self.alarm,
            "alarm_step": self.alarm_step,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the values of a checkpoint, and keeps its own window and level."""
        self.values = [(proxy, held_out) for proxy, held_out in state_dict["values"]]
        self.alarm = state_dict["alarm"]
        self.alarm_step = state_dict["alarm_step"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks the modes against the scores' directions, and the order of the callbacks."""
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for key, mode in ((self.proxy, self.proxy_mode), (self.held_out, self.held_out_mode)):
            check_mode(trainer, key, mode)
            scorer = find_scorer(trainer, key)
            if scorer is not None and callbacks.index(scorer) > callbacks.index(self):
                raise MisconfigurationException(
                    f"ProxyGuard reads {key!r}, which a callback after it logs: put ProxyGuard "
                    f"behind the GenerationScorer named {scorer.name!r} in callbacks"
                )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends at once a resumed run that an alarm had ended."""
        if trainer.ckpt_path is not None and self.stop and self.alarm:
            trainer.should_stop = self._test().p_value <= self.level

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tests and logs, where both metrics have a new value."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if not (fitting and is_fresh(trainer, self.proxy) and is_fresh(trainer, self.held_out)):
            return
        pair = self._value(trainer, self.proxy), self._value(trainer, self.held_out)
        if not all(map(math.isfinite, pair)):
            return
        self.values = [*self.values, pair][-self.window :]
        found = self._test()
        alarm = trainer.strategy.reduce_boolean_decision(found.p_value <= self.level, all=False)
        if alarm and not self.alarm:
            rank_zero_warn(f"ProxyGuard at step {trainer.global_step}: {self._describe(found)}")
        if alarm and self.alarm_step < 0:
            self.alarm_step = trainer.global_step
        self.alarm = alarm
        for key, value in (("alarm", float(alarm)), ("p_value", found.p_value)):
            pl_module.log(
                f"{self.name}/{key}",
                value,
                on_step=False,
                on_epoch=True,
                sync_dist=True,
                batch_size=1,
            )
        trainer.should_stop = trainer.should_stop or (alarm and self.stop)

    def _test(self) -> Divergence:
        proxy, held_out = zip(*self.values[-self.window :], strict=True)
        return divergence(proxy, held_out, self.proxy_mode, self.held_out_mode)

    def _describe(self, found: Divergence) -> str:
        (first, before), (last, after) = self.values[0], self.values[-1]
        return (
            f"{self.proxy} improved from {first:.4f} to {last:.4f} (p = {found.proxy:.4f}) while "
            f"{self.held_out} got worse, from {before:.4f} to {after:.4f} (p = "
            f"{found.held_out:.4f}), in the last {len(self.values)} scored validations: the "
            "policy may be gaming the reward"
        )

    @staticmethod
    def _value(trainer: pl.Trainer, key: str) -> float:
        metrics = trainer.callback_metrics
        if key not in metrics:
            raise MisconfigurationException(
                f"ProxyGuard reads {key!r}, which is not logged when a validation ends: these are "
                f"{sorted(metrics)}"
            )
        return metrics[key].item()
