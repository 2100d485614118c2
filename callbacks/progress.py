"""Progress of a training run: phase, step, metrics and time left."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, cast

from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.report import BeforeAfterMixin
from ctrlreward.callbacks.stopping import stopped_by
from ctrlreward.lightning_package import (
    LightningModule,
    ModelCheckpoint,
    Trainer,
    is_instance,
)
from ctrlreward.progress import SECONDS_PER_LINE, Log, duration, show, write_line


class RewardProgressBarMixin(CallbackMixin):
    """Progress bar that shows the phase of a run, its steps, its metrics and the time left.

    On a terminal, one bar at the bottom, with another for long scoring. In a log file or a pipe,
    whole lines on standard error: one when the phase changes, and one every ten seconds or after
    each step if steps take longer.

    - Phases: start (loading), sanity check, before, training, validation, after. `BeforeAfter` has
      "before" and "after" if it comes later in the trainer's list of callbacks.
    - Steps are those of `trainer.global_step`. They are counted up to the smallest of `max_steps`,
      the number of batches, and ("about") the steps that `max_time` leaves time for.
    - Metrics are those logged with `prog_bar=True`, and the scores that checkpoint and early
      stopping callbacks monitor.
    - The time left follows from the seconds per step so far, validations included. It is not more
      than `max_time` leaves, and includes the phase after training, which takes as long as the one
      before. Early stopping may end the run sooner.

    Replaces Lightning's bar; `ctrlreward train` uses it unless the configuration has another one or
    sets `enable_progress_bar` to false. Only rank 0 shows anything.

    Examples:
        >>> from pytorch_lightning import Trainer
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> from ctrlreward.callbacks import RewardProgressBar
        >>> bar = RewardProgressBar()
        >>> Trainer(max_steps=10, callbacks=[bar], enable_progress_bar=True).fit(BoringModel())
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._shown = ExitStack()
        self._state: _Run | None = None
        self._display: Log | None = None

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
        if self._enabled:
            self._state = _Run(trainer, stage)
            self._display = self._shown.enter_context(show(self._state))

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase."""
        self._enter("sanity check")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase before training, and tell where a resumed run goes on."""
        if self._state and trainer.global_step:
            write_line(f"resumed after step {trainer.global_step:,}")
        if self._state and self._state.report and not trainer.global_step:
            self._enter("before")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Enter the phase of training; a run that resumes within an epoch does not start one."""
        if self._state and not self._state.training:
            self._state.start_steps()
            self._enter("training")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Show step, metrics and time left."""
        if self._state and self._display:
            self._state.measure()
            if self._state.pace >= SECONDS_PER_LINE:
                self._display.announce()
            else:
                self._display.update()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase."""
        if not trainer.sanity_checking:
            self._enter("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return to training, with the new scores."""
        if self._state and self._state.training:
            self._state.measure()
            self._enter("training")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the phase after training."""
        if self._state:
            self._state.measure()
            self._state.end_steps()
            self._enter("after" if self._state.report else "end")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Tell where the run was interrupted."""
        if self._state and self._state.fits:
            self._end(type(exception).__name__)
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tell why a fit ended, and after how many steps."""
        if self._state and self._state.ended is not None:
            self._end(stopped_by(trainer))
        self._close()

    def _enter(self, phase: str) -> None:
        if self._state and self._display:
            self._state.title = phase
            self._display.update()

    def _end(self, reason: str) -> None:
        run = self._state
        self._close()
        if run:
            write_line(f"stopped {run.summary()}: {reason}")

    def _close(self) -> None:
        self._state = self._display = None
        self._shown.close()


class _Run:
    """State of a run, read by a display.

    Metrics are read in hooks of the trainer only; a terminal calls `text` from another thread.
    """

    def __init__(self, trainer: Trainer, stage: str) -> None:
        self.title = {"fit": "start", "validate": "validation"}.get(stage, stage)
        self.trainer = trainer
        self.fits = stage == "fit"
        reports = [c for c in _callbacks(trainer) if isinstance(c, BeforeAfterMixin)]
        trial = trainer.fast_dev_run  # type: ignore[attr-defined]
        self.report = reports[0] if reports and not trial else None
        self.training = False
        self.ended: float | None = None
        self._created = time.monotonic()
        self._first = (0.0, 0)  # time and step at which training started
        self._measured = 0.0
        self.pace = 0.0  # seconds per step; 0 before the first
        self._total = float("inf")
        self._bound = "" if math.isinf(_seconds_allowed(trainer)) else "at most "
        self._metrics: dict[str, float] = {}

    @property
    def share(self) -> float | None:
        """Share of the steps; None before and after training."""
        if not self.training or not self._total:
            return None
        return min(1.0, self.trainer.global_step / self._total)

    def text(self) -> str:
        """Return step, metrics and time left."""
        if not self.fits:
            return ""
        total = self._total if self.training or self.ended else _planned_steps(self.trainer)
        of = "" if math.isinf(total) else f" of {self._bound}{total:,.0f}"
        metrics = [f"{name} {value:.4g}" for name, value in self._metrics.items()]
        return ", ".join([f"step {self.trainer.global_step:,}{of}", *metrics, self._time_left()])

    def summary(self) -> str:
        """Return where the run is, and the time it took."""
        seconds = duration(time.monotonic() - self._created)
        return f"at step {self.trainer.global_step:,} after {seconds}"

    def start_steps(self) -> None:
        """Start the clock of training."""
        self.training = True
        self._first = (time.monotonic(), self.trainer.global_step)
        self._total = _planned_steps(self.trainer)

    def measure(self) -> None:
        """Read the metrics, and compute seconds per step and the number of steps."""
        self._metrics = _shown_metrics(self.trainer)
        self._measured = now = time.monotonic()
        began, first = self._first
        done = self.trainer.global_step
        self._total = _planned_steps(self.trainer)
        if done > first:
            self.pace = max(1e-9, (now - began) / (done - first))
            allowed = max(0.0, _seconds_allowed(self.trainer)) / self.pace
            self._bound = "about " if done + allowed < self._total else ""
            if self._bound:
                self._total = done + math.ceil(allowed)

    def end_steps(self) -> None:
        """End the clock of training."""
        self.training = False
        self.ended = time.monotonic()
        self._total, self._bound = float("inf"), ""

    def _time_left(self) -> str:
        now = time.monotonic()
        last = self.report.seconds.get("before") if self.report else 0.0
        if self.ended is not None:
            left = None if last is None else last - (now - self.ended)
        elif not self.pace or last is None or math.isinf(self._total):
            left = None
        else:
            steps = self.pace * (self._total - self.trainer.global_step) - (now - self._measured)
            left = max(0.0, min(steps, _seconds_allowed(self.trainer))) + last
        return "time left unknown" if left is None else f"{duration(left)} left"


def _callbacks(trainer: Trainer) -> list[Any]:
    return trainer.callbacks  # type: ignore[attr-defined]


def _planned_steps(trainer: Trainer) -> float:
    """Return the smaller of `max_steps` and the steps of all batches; infinity without a limit."""
    batches = float(trainer.num_training_batches)
    epochs = trainer.max_epochs
    batches *= float("inf") if epochs in (None, -1) else epochs
    finished = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    per_batch = 1 / trainer.accumulate_grad_batches
    if trainer.global_step and finished > 0:
        per_batch = trainer.global_step / finished
    steps = batches if math.isinf(batches) else math.ceil(batches * per_batch)
    return min(steps, trainer.max_steps if trainer.max_steps >= 0 else float("inf"))


def _seconds_allowed(trainer: Trainer) -> float:
    """Return the seconds until `max_time`; infinity without it."""
    for callback in _callbacks(trainer):
        if is_instance(callback, "callbacks.Timer"):
            remaining: float | None = callback.time_remaining()
            return float("inf") if remaining is None else remaining
    return float("inf")


def _shown_metrics(trainer: Trainer) -> dict[str, float]:
    """Return the metrics for the progress bar, and those that callbacks monitor."""
    logged: Mapping[str, Any] = trainer.callback_metrics | trainer.progress_bar_metrics
    monitors = [
        cast(ModelCheckpoint, callback).monitor
        for callback in _callbacks(trainer)
        if is_instance(callback, "callbacks.EarlyStopping")
        or is_instance(callback, "callbacks.ModelCheckpoint")
    ]
    names = dict.fromkeys([*trainer.progress_bar_metrics, *filter(None, monitors)])
    return {name: float(logged[name]) for name in names if name in logged}
