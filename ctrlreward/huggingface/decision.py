"""Base of the callbacks that decide at evaluations."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ctrlreward.huggingface.run_state import read_validation, stored

log = logging.getLogger(__name__)


class DecisionCallback(TrainerCallback, ABC):
    """Applies a rule of `ctrlreward.selection` once per evaluated step of training.

    With several evaluation sets it waits for the set that has its keys. Evaluations outside of
    training are ignored. The rule's state is restored with a checkpoint.

    Attributes:
        state: State of the rule; None before the first evaluation.
        previous: State before the last evaluation.
    """

    def __init__(self, key: str, state_type: type[Any]) -> None:
        self.state: Any = None
        self.previous: Any = None
        self._key = f"{type(self).__name__} {key}"
        self._state_type = state_type
        self._training = False
        self._decided = -1
        self._had_stopped = False
        self._missing: ValueError | None = None

    @abstractmethod
    def rule(self, state: TrainerState) -> Any:
        """Return the rule, with the directions that the scorers of the trainer declare.

        Raises:
            ValueError: A direction is unknown or contradicts a score.
        """

    def resume(self, rule: Any, state: TrainerState) -> bool:
        """Return whether a resumed run had stopped, and would stop with these settings."""
        return False

    def read(self, state: TrainerState, metrics: dict[str, float]) -> Sequence[Any]:
        """Return metrics, stale keys and evidence, for `rule.update`."""
        return read_validation(state, metrics)

    def act(
        self,
        decision: Any,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
    ) -> None:
        """Apply a decision; by default, save the checkpoint if it is kept."""
        if decision.keep:
            control.should_save = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start, or continue a resumed run as if it had not been interrupted.

        The trainer checks for a stop after a step, so a resumed run that had stopped runs one
        step, which is neither evaluated nor saved.
        """
        self._training, self._decided, self._missing, self.state = True, -1, None, None
        before = stored(state).get(self._key)
        self._had_stopped = False
        if state.global_step and before is not None:
            self.state = self._state_type.from_dict(before)
            self._had_stopped = self.resume(self.rule(state), state)
            control.should_training_stop |= self._had_stopped

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the decisions of a run that had stopped."""
        if self._had_stopped:
            control.should_evaluate = control.should_save = False

    on_epoch_end = on_step_end

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise if no set of the last evaluation had the keys."""
        if self._missing is not None:
            raise self._missing

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make no more decisions."""
        self._training = False
        if self._missing is not None:
            raise self._missing

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Decide."""
        metrics = {} if metrics is None else metrics
        if self._training and state.global_step != self._decided:
            try:
                rule, before = self.rule(state), self.state
                after, decision = rule.update(
                    before or rule.start(), state.global_step, *self.read(state, metrics)
                )
            except ValueError as error:  # unless another set has the keys
                self._missing = ValueError(
                    f"{type(self).__name__}: {error}. Add GenerationScorer before its users"
                )
                return
            self.previous, self.state = before, after
            self._decided, self._missing = state.global_step, None
            self.act(decision, args, state, control, metrics)
            stored(state)[self._key] = self.state.to_dict()

    def say(self, state: TrainerState, reason: str) -> None:
        """Log a decision, from rank 0."""
        if state.is_world_process_zero:
            log.warning("%s at step %d: %s", type(self).__name__, state.global_step, reason)
