"""Metrics read by callbacks: fresh or stale, and their directions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ctrlreward.arguments import Mode, better_direction
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.terms import ShapedModule
from ctrlreward.files import json_text, read_json, write_whole
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    callbacks_of,
    is_instance,
    package_of,
)
from ctrlreward.ranks import on_rank_zero
from ctrlreward.scorers.base import Scores
from ctrlreward.selection.decider import Decider, Decides, stale_keys, with_assigned
from ctrlreward.selection.replay import DECISIONS


class Reader:
    """Age of logged metrics, in looks at the metrics of a run.

    Lightning keeps a metric until it is logged again, and gives no sign of age. But what is logged
    again is in other memory.
    """

    def __init__(self) -> None:
        self._decided = -1
        self._looks = self._started = 0
        self._values: dict[str, torch.Tensor] = {}  # alive, so that no other one has their memory
        self._logged: dict[str, int] = {}
        self._validated: set[str] = set()

    def note(self) -> None:
        """Note a decision."""
        self._decided = self._looks

    def start(self, trainer: Trainer) -> None:
        """Note what is logged when a validation starts."""
        self._look(trainer.callback_metrics)
        self._started = self._looks + 1

    def read(self, metrics: Mapping[str, torch.Tensor]) -> set[str]:
        """Return the keys without a new value."""
        self._look(metrics)
        self._validated |= {key for key, look in self._logged.items() if look >= self._started}
        logged = {key: self._logged[key] for key in metrics}
        return stale_keys(logged, self._validated, self._started, self._decided)

    def _look(self, metrics: Mapping[str, torch.Tensor]) -> None:
        self._looks += 1
        for key, value in metrics.items():
            before = self._values.get(key)
            if before is None or before.data_ptr() != value.data_ptr():
                self._values[key], self._logged[key] = value, self._looks


# Keys of rewards whose name says the direction.
_REWARD_TOTALS: dict[str, Mode] = {"reward/total": "max", "reward/shaped": "max"}


_CLASSES = {"ctrlreward.callbacks": "ctrlreward.callbacks.pytorch_lightning"}


def note_decisions(log_dir: Path, **content: Mapping[str, Any]) -> None:
    """Write next to the log what `ctrlreward select` and `report` read of the callbacks."""
    file = log_dir / DECISIONS
    noted: dict[str, Any] = read_json(file) if file.is_file() else {}
    for name, values in content.items():
        noted[name] = {**noted.get(name, {}), **values}
    write_whole(file, json_text(noted))


class RuleErrorMixin(RuntimeError, ValueError):
    """A rule rejects its settings or misses a metric, a RuntimeError as in Lightning."""


@contextmanager
def rule_errors(callback: Callback) -> Iterator[None]:
    """Raise the ValueError of a rule as a `RuleErrorMixin`, with the name of the callback."""
    try:
        yield
    except ValueError as error:
        ours = package_of(callback).ours
        rule_error = import_module(_CLASSES.get(ours, ours)).RuleError
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
    return metrics, stale | reader.read(logged), evidence


class ReadingMixin(CallbackMixin):
    """Callback that reads what a validation logged, and decides once on the same weights."""

    _decided_step: int = -1  # training step of the last decision, -1 before

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
        return is_fitting(trainer) and self._decided_step != trainer.global_step


class DecidingMixin(Decides, ReadingMixin):
    """Callback that applies a rule of `ctrlreward.selection`, by its `Decider`.

    A setting of the rule that is assigned to the callback counts from the next run on.
    """

    _given: Any  # the rule, with directions as given

    def decide_by(self, given: Any) -> None:
        """Set the rule, at the end of a constructor."""
        self._given, self.decider = given, Decider(given)

    def settings(self) -> Any:
        """Return the rule with the settings that were assigned to this callback."""
        return with_assigned(self._given, self)

    @property
    def _decided_step(self) -> int:  # type: ignore[override]
        """Training step of the last decision, -1 before."""
        return self.decider.step

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the directions of the rule: given, or declared by the scorers of the trainer."""
        super().setup(trainer, pl_module, stage)
        self.needs_validation(trainer, stage)
        with rule_errors(self):
            mode_of = partial(resolve_mode, trainer)
            self.decider.begin(self.settings(), mode_of, known_bounds(trainer))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the rule next to the log."""
        super().on_train_start(trainer, pl_module)
        log_dir = Path(trainer.log_dir or trainer.default_root_dir)
        rules, modes = {type(self.rule).__name__: asdict(self.rule)}, known_modes(trainer)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            on_rank_zero(lambda: note_decisions(log_dir, rules=rules, directions=modes))

    def decide(
        self,
        trainer: Trainer,
        metrics: Mapping[str, float],
        stale: Collection[str],
        evidence: Mapping[str, Scores],
    ) -> Any:
        """Return the rule's decision on the weights of this step."""
        with rule_errors(self):
            decision = self.decider.decide(trainer.global_step, metrics, stale, evidence)
        if self._decided_step == trainer.global_step:
            self._reader.note()
        return decision


class MonitorMixin(DecidingMixin):
    """Callback whose rule monitors one key, in Lightning's `monitor` and `mode`."""

    @property
    def mode(self) -> str:
        """Better direction of the key: as given or assigned, else as a scorer declares it."""
        if "decider" not in vars(self):  # in Lightning's constructor
            return "max"
        return self._given.mode or self.rule.mode or "max"

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if "decider" in vars(self):
            self._given = replace(self._given, mode=mode)


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
    return better_direction(key, mode, declared.get(key), declared, argument)


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
