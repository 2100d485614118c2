"""Progress of a training run: phase, step, metrics and time left."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.monitoring import monitored
from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.callbacks.stopping import stopped_by
from ctrlreward.lightning_package import (
    LightningModule,
    ProgressBar,
    Trainer,
    callbacks_of,
    is_instance,
)
from ctrlreward.progress import SECONDS_PER_LINE, Log, duration, show, write_line


class RewardProgressBarMixin(CallbackMixin, ProgressBar):
    """Progress bar that shows the phase of a run, its steps, its metrics and the time left.

    On a terminal, one bar at the bottom, with another for long scoring. In a log file or a pipe,
    whole lines on standard error: one when the phase changes, and one every ten seconds or after
    each step if steps take longer.

    - Phases: start (loading), sanity check, training, validation, and two of `BeforeAfter`.
    - Steps are `trainer.global_step`, up to the smallest of `max_steps`, the number of batches, and
      ("about") the steps that `max_time` leaves time for.
    - Metrics are the values logged with `prog_bar=True`, and the scores that checkpoint and early
      stopping callbacks monitor.
    - The time left follows from the seconds per step so far, validations included, and includes the
      phase after training, which takes as long as the one before.

    Replaces Lightning's bar, on rank 0, and becomes the first of the trainer's callbacks.
    `ctrlreward train` uses it unless the configuration has another one or sets
    `enable_progress_bar` to false.

    Examples:
        >>> from ctrlreward.callbacks import RewardProgressBar
        >>> bar = RewardProgressBar()  # for Trainer(callbacks=[bar])
    """

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self._enabled = True
        self._fits = False
        self._first: tuple[float, int] | None = None  # time and step at which training started
        self._ended: float | None = None  # time at which training ended
        self._shown = ExitStack()
        self._display: Log | None = None  # while a run is shown

    def enable(self) -> None:
        """Show the progress of the next run."""
        self._enabled = True

    def disable(self) -> None:
        """Show nothing from now on, as Lightning's tuner asks for."""
        self._enabled = False
        self._close()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start to show the run, on rank 0."""
        super().setup(trainer, pl_module, stage)  # disables this bar on other ranks
        self._close()
        # Before other callbacks, some of which work long in the hooks that start a phase.
        others = [each for each in trainer.callbacks if each is not self]  # type: ignore[attr-defined]
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]
        reports = callbacks_of(trainer, BeforeAfterMixin)
        self._report = reports[0] if reports and not trainer.fast_dev_run else None  # type: ignore[attr-defined]
        self._fits = stage == "fit"
        self._created = self._measured = time.monotonic()
        self._first = self._ended = None
        self._seconds_per_step = 0.0  # 0 before the first
        self._total = math.inf
        self._bound = "" if math.isinf(_seconds_allowed(trainer)) else "at most "
        self._metrics: dict[str, float] = {}
        self.title = {"fit": "start", "validate": "validation"}.get(stage, stage)
        if self._enabled:
            self._display = self._shown.enter_context(show(self))

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase."""
        self._enter("sanity check")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase before training, or print where a resumed run continues."""
        if self._display and trainer.global_step:
            write_line(f"resumed after step {trainer.global_step:,}")
        elif self._report:
            self._enter("before")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Enter the phase of training; a run that resumes within an epoch does not start one."""
        if self._first is None:
            self._first = (time.monotonic(), trainer.global_step)
            self._total = _planned_steps(trainer)
            self._enter("training")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Show step, metrics and time left."""
        self._measure()
        if self._display and self._seconds_per_step >= SECONDS_PER_LINE:
            self._display.announce()
        elif self._display:
            self._display.update()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase."""
        super().on_validation_start(trainer, pl_module)
        if not trainer.sanity_checking:
            self._enter("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return to training, with the new scores."""
        if self._first:
            self._measure()
            self._enter("training")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase after training."""
        self._measure()
        self._ended, self._total = time.monotonic(), math.inf
        self._enter("after" if self._report else "end")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Print where the run was interrupted."""
        self._close(type(exception).__name__ if self._fits else "")
        super().on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print why a fit ended, and after how many steps."""
        self._close(stopped_by(trainer) if self._ended is not None else "")
        super().teardown(trainer, pl_module, stage)

    @property
    def share(self) -> float | None:
        """Share of the steps; None before and after training."""
        if self._first is None or self._ended is not None or not self._total:
            return None
        return min(1.0, self.trainer.global_step / self._total)

    def text(self) -> str:
        """Return step, metrics and time left. A terminal calls this from another thread."""
        if not self._fits:
            return ""
        total = self._total if self._first else _planned_steps(self.trainer)
        of = "" if math.isinf(total) else f" of {self._bound}{total:,.0f}"
        metrics = [f"{name} {value:.4g}" for name, value in self._metrics.items()]
        return ", ".join([f"step {self.trainer.global_step:,}{of}", *metrics, self._time_left()])

    def _enter(self, phase: str) -> None:
        self.title = phase
        if self._display:
            self._display.update()

    def _close(self, reason: str = "") -> None:
        """Remove the display, and print why the run stopped."""
        display, self._display = self._display, None
        self._shown.close()
        if display and reason:
            seconds = duration(time.monotonic() - self._created)
            write_line(f"stopped at step {self.trainer.global_step:,} after {seconds}: {reason}")

    def _measure(self) -> None:
        """Read the metrics, and compute seconds per step and the number of steps."""
        logged = self.trainer.callback_metrics | self.trainer.progress_bar_metrics
        names = dict.fromkeys([*self.trainer.progress_bar_metrics, *monitored(self.trainer)])
        self._metrics = {name: float(logged[name]) for name in names if name in logged}
        self._measured = now = time.monotonic()
        began, first = self._first or (now, 0)
        done = self.trainer.global_step
        self._total = _planned_steps(self.trainer)
        if done > first:
            self._seconds_per_step = max(1e-9, (now - began) / (done - first))
            allowed = max(0.0, _seconds_allowed(self.trainer)) / self._seconds_per_step
            self._bound = "about " if done + allowed < self._total else ""
            if self._bound:
                self._total = done + math.ceil(allowed)

    def _time_left(self) -> str:
        now = time.monotonic()
        after = self._report.seconds.get("before") if self._report else 0.0
        if after is None:
            return "time left unknown"
        if self._ended is not None:
            return f"{duration(after - (now - self._ended))} left"
        if not self._seconds_per_step or math.isinf(self._total):
            return "time left unknown"
        steps = self._seconds_per_step * (self._total - self.trainer.global_step)
        left = min(steps - (now - self._measured), _seconds_allowed(self.trainer))
        return f"{duration(max(0.0, left) + after)} left"


def _planned_steps(trainer: Trainer) -> float:
    """Return the smaller of `max_steps` and the steps of all batches; infinity without a limit."""
    epochs = trainer.max_epochs
    batches = trainer.num_training_batches * (math.inf if epochs in (None, -1) else epochs)
    finished = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    per_batch = 1 / trainer.accumulate_grad_batches
    if trainer.global_step and finished > 0:
        per_batch = trainer.global_step / finished
    steps = batches if math.isinf(batches) else math.ceil(batches * per_batch)
    return min(steps, trainer.max_steps if trainer.max_steps >= 0 else math.inf)


def _seconds_allowed(trainer: Trainer) -> float:
    """Return the seconds until `max_time`; infinity without it."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if is_instance(callback, "callbacks.Timer"):
            remaining = callback.time_remaining()
            return math.inf if remaining is None else remaining
    return math.inf
