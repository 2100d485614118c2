"""Metrics read by callbacks: fresh or stale, their directions, and late ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ctrlreward.arguments import Mode, better_direction
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.overlap import late_score_error
from ctrlreward.callbacks.terms import ShapedModule
from ctrlreward.functional.sequential import Resolution
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    callbacks_of,
    is_instance,
    misconfigured,
    mixed,
    package_of,
)
from ctrlreward.scorers.base import Scores

# Names in other libraries of the arguments of callbacks that monitor a key, and our names.
OTHER_NAMES = {
    "metric": "monitor",
    "metric_name": "monitor",
    "metric_for_best_model": "monitor",
    "higher_is_better": "mode='max' or 'min', or leave it out for a declared score",
    "greater_is_better": "mode='max' or 'min', or leave it out for a declared score",
}
FRONT_NAMES = {
    **dict.fromkeys(("monitor", "monitors", "objectives"), "metrics"),
    **dict.fromkeys(("mode", "directions"), "metrics, key → direction"),
}
GUARD_NAMES = {
    "monitor": "proxy and held_out",
    "mode": "proxy_mode and held_out_mode",
    "patience": "window",
    "alpha": "level",
}


class Reader:
    """Record of the metrics that a callback has read, and the step of its last decision.

    Lightning keeps a metric until it is logged again, and gives no sign of age. But what is logged
    again is in other memory. A metric that validations log is new if the last one has logged it,
    and another, of training, if it was logged since the last decision.

    Attributes:
        step: `trainer.global_step` of the last decision, -1 before: the same weights are decided on
            once, however often they are validated.
    """

    def __init__(self) -> None:
        self.step = -1
        self._of_validations: set[str] = set()
        self._before: dict[str, torch.Tensor] = {}  # at the start of the validation
        self._decided: dict[str, torch.Tensor] = {}  # at the last decision

    def start(self, trainer: Trainer) -> None:
        """Note what is logged when a validation starts."""
        self._before = dict(trainer.callback_metrics)

    def stale(self, metrics: Mapping[str, torch.Tensor]) -> set[str]:
        """Return the keys without a new value."""
        self._of_validations |= {key for key in metrics if not _same(self._before, metrics, key)}
        before = {
            key: self._before if key in self._of_validations else self._decided for key in metrics
        }
        return {key for key in metrics if _same(before[key], metrics, key)}

    def decide(self, trainer: Trainer) -> None:
        """Note a decision."""
        self.step, self._decided = trainer.global_step, dict(trainer.callback_metrics)


def _same(before: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor], key: str) -> bool:
    # The old tensor is alive, so no other one can have got its memory.
    return key in before and before[key].data_ptr() == now[key].data_ptr()


# Keys of rewards whose name says the direction.
_REWARD_TOTALS: dict[str, Mode] = {"reward/total": "max", "reward/shaped": "max"}


class RuleErrorMixin(RuntimeError):
    """A rule rejects its settings or misses a metric, a RuntimeError as in Lightning."""


@contextmanager
def rule_errors(callback: Callback) -> Iterator[None]:
    """Raise the ValueError of a rule as a `RuleErrorMixin`, with the name of the callback."""
    try:
        yield
    except ValueError as error:
        base = "utilities.exceptions.MisconfigurationException"
        rule_error = mixed(RuleErrorMixin, package_of(callback), base)
        raise rule_error(f"{type(callback).__name__}: {error}") from error


def find_scorer(trainer: Trainer, key: str) -> GenerationScorerMixin | None:
    """Return the trainer's `GenerationScorer` that logs this key, None if there is none."""
    scorers = callbacks_of(trainer, GenerationScorerMixin)
    return next((scorer for scorer in scorers if key in scorer.specs), None)


def read_metrics(
    trainer: Trainer, reader: Reader
) -> tuple[dict[str, float], set[str], dict[str, Scores]]:
    """Return all logged metrics, the keys without a new value, and the evidence.

    The evidence is the value of each held-out prompt, for keys that a `GenerationScorer` logs.
    """
    logged = dict(trainer.callback_metrics)
    scorers = callbacks_of(trainer, GenerationScorerMixin)
    stale = {key for s in scorers if not s.has_new_scores for key in s.specs}
    metrics = {key: value.item() for key, value in logged.items()}
    evidence = {key: row for s in scorers for key, row in s.evidence.items()}
    return metrics, stale | reader.stale(logged), evidence


class ReadingMixin(CallbackMixin):
    """Callback that reads what a validation logged, and decides once on the same weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reader = Reader()

    def reset(self, unused: dict[str, Any]) -> None:
        """Return to the state before the first run, without what it read."""
        self._reader = Reader()
        super().reset(unused)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what is logged before the validation."""
        super().on_validation_start(trainer, pl_module)
        self._reader.start(trainer)

    def is_undecided(self, trainer: Trainer) -> bool:
        """Return whether a validation is part of training, and the first of these weights."""
        return is_fitting(trainer) and self._reader.step != trainer.global_step


def resolutions(trainer: Trainer) -> dict[str, Resolution]:
    """Return the difference that the held-out prompts can show, by logged key."""
    scorers = callbacks_of(trainer, GenerationScorerMixin)
    return {key: found for s in scorers for key, found in s.resolutions.items()}


def may_stop(trainer: Trainer) -> bool:
    """Return whether the trainer's `min_epochs` and `min_steps` allow a stop at this validation."""
    epochs = trainer.current_epoch + int(trainer.is_last_batch)
    return epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)


def is_fitting(trainer: Trainer) -> bool:
    """Return whether a validation is part of training: not the sanity check, not `validate`."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def resolve_mode(trainer: Trainer, key: str, mode: Mode | None, argument: str = "mode") -> Mode:
    """Return the better direction of a logged key: the given one, else the declared one.

    A `GenerationScorer` of the trainer declares the direction of its scores, and the `Reward` of
    the module the directions of its components; `reward/total` and `reward/shaped` are better when
    higher, also of a module without a `Reward`; `reward/disagreement` when lower.
    """
    scored = _scored_modes(trainer)
    declared = scored | _reward_modes(trainer.lightning_module) | scored
    mode = mode or _REWARD_TOTALS.get(key)
    try:
        return better_direction(key, mode, declared.get(key), declared, argument)
    except ValueError as error:
        raise misconfigured(trainer, str(error)) from None


def monitored(trainer: Trainer) -> dict[str, Mode]:
    """Return each key that a checkpoint or early stopping callback monitors, and its direction."""
    kinds = ("callbacks.EarlyStopping", "callbacks.ModelCheckpoint")
    modes: dict[str, Mode] = {}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if any(is_instance(callback, kind) for kind in kinds) and callback.monitor is not None:
            modes.setdefault(callback.monitor, callback.mode)
    return modes


def known_modes(trainer: Trainer) -> dict[str, Mode]:
    """Return the better direction of each key that a scorer declares or a callback monitors."""
    scored = _scored_modes(trainer)
    return scored | monitored(trainer) | scored


def known_bounds(trainer: Trainer) -> dict[str, list[float | None]]:
    """Return the smallest and largest possible value of each key that a scorer declares."""
    scorers = callbacks_of(trainer, GenerationScorerMixin)
    return {key: spec.bounds for scorer in scorers for key, spec in scorer.specs.items()}


def _scored_modes(trainer: Trainer) -> dict[str, Mode]:
    scorers = callbacks_of(trainer, GenerationScorerMixin)
    return {key: spec.mode for scorer in scorers for key, spec in scorer.specs.items()}


def _reward_modes(module: object) -> dict[str, Mode]:
    """Return the better direction of each key that a policy logs of its rewards."""
    if not isinstance(module, ShapedModule):
        return {}
    modes: dict[str, Mode] = {name: c.spec.mode for name, c in module.reward.components.items()}
    # Derived are the deviations of an ensemble's members.
    modes |= dict.fromkeys(module.reward.derived, "min")
    return {f"reward/{name}": mode for name, mode in modes.items()} | _REWARD_TOTALS


def check_timely(trainer: Trainer, callback: Callback, keys: Iterable[str]) -> None:
    """Raise if checkpoints would be selected by scores of earlier weights."""
    for key in keys:
        scorer = find_scorer(trainer, key)
        if scorer is not None and scorer.overlap:
            raise misconfigured(trainer, late_score_error(callback, key))
