"""Validations of a run as its callbacks see them, and callbacks that decide on them by a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor

from ctrlreward.arguments import Mode, better_direction
from ctrlreward.callbacks.base_callback import CallbackMixin, log_folder
from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.terms import ShapedModule
from ctrlreward.files import json_text, read_json, write_whole
from ctrlreward.lightning_package import LightningModule, Trainer, callbacks_of, is_instance
from ctrlreward.ranks import on_rank_zero
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.selection import StopRule
from ctrlreward.selection.decider import Decides, check_order
from ctrlreward.selection.metrics import NotLogged, Snapshot
from ctrlreward.selection.replay import DECISIONS


class Snapshots:
    """The validations of a run, of which all its callbacks share one snapshot each, of rank 0.

    Lightning keeps a metric until it is logged again, without a sign of its age: what has not been
    logged again is a view of the same tensor.

    Attributes:
        snapshot: Of the current validation, once it is taken.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self._logged: dict[str, Tensor] = {}  # at the last look
        self._validated: set[str] = set()  # the keys that validations log
        self._trained: dict[str, int] = {}  # other keys → step at which they were new

    def begin(self, trainer: Trainer, step: int) -> None:
        """Note what training has logged up to a step, when a validation starts."""
        self._trained |= dict.fromkeys(self._new(trainer), step)
        self.snapshot = None

    def take(self, trainer: Trainer) -> Snapshot:
        """Return the snapshot of a validation at its end."""
        if self.snapshot is None:
            fresh = self._new(trainer)
            values = {key: value.item() for key, value in self._logged.items()}
            # A metric may differ between ranks, or be logged on one alone; decisions must not.
            of_rank_zero = fresh, values, self._trained
            fresh, values, self._trained = trainer.strategy.broadcast(of_rank_zero)
            self._validated |= fresh
            trained = {k: at for k, at in self._trained.items() if k not in self._validated}
            evidence: dict[str, Scores] = {}
            for scorer in callbacks_of(trainer, GenerationScorerMixin):
                if scorer.has_new_scores:
                    evidence |= scorer.evidence
                else:  # it has logged its last scores again
                    fresh -= scorer.specs.keys()
            self.snapshot = Snapshot(trainer.global_step, values, fresh, evidence, trained)
        return self.snapshot

    def _new(self, trainer: Trainer) -> set[str]:
        """Return the keys that have been logged since the last look."""
        before, now = self._logged, dict(trainer.callback_metrics)
        self._logged = now
        return {k for k in now if k not in before or not now[k].is_set_to(before[k])}


class DecidingMixin(Decides, CallbackMixin):
    """Callback that applies a rule of `ctrlreward.selection`, by its `decider`."""

    snapshots: Snapshots  # of the trainer

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Share the snapshots of the trainer, and set the directions of the rule."""
        super().setup(trainer, pl_module, stage)
        first = next(iter(callbacks_of(trainer, DecidingMixin)), self)
        self.snapshots = Snapshots() if self is first else first.snapshots
        self.needs_validation(trainer, stage)
        bounds = {key: spec.bounds for key, spec in scored_specs(trainer).items()}
        try:
            check_order(self, self.rule.keys, callbacks_of(trainer, DecidingMixin))
            self.decider.begin(partial(resolve_mode, trainer), bounds)
        except ValueError as error:
            self.refuse(str(error))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        self._awaits_validation = self._awaits_validation and trainer.sanity_checking
        self.snapshots.begin(trainer, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self.decider.to_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, but not the settings, of the run that wrote the checkpoint."""
        self.decider.load(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        rules = {type(self.rule).__name__: asdict(self.rule)}
        note_decisions(trainer, rules=rules, directions=known_modes(trainer))

    def decide(self, trainer: Trainer) -> Any:
        """Return the rule's decision; None if these weights are decided on, or not in training."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return None
        if self.decider.step == trainer.global_step:
            return None
        try:
            return self.decider.decide(self.snapshots.take(trainer))
        except NotLogged as error:
            self.refuse(str(error))


def note_decisions(trainer: Trainer, **content: Mapping[str, Any]) -> None:
    """Write next to the log what `ctrlreward select` and `report` read of the callbacks."""
    file = log_folder(trainer) / DECISIONS
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return

    def write() -> None:
        noted: dict[str, Any] = read_json(file) if file.is_file() else {}
        merged = {name: {**noted.get(name, {}), **values} for name, values in content.items()}
        write_whole(file, json_text({**noted, **merged}))

    on_rank_zero(write)


def may_stop(trainer: Trainer) -> bool:
    """Return whether the trainer's `min_epochs` and `min_steps` allow a stop at this validation."""
    epochs = trainer.current_epoch + int(trainer.is_last_batch)
    return epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)


def scored_specs(trainer: Trainer) -> dict[str, ScoreSpec]:
    """Return direction and range of each key that a `GenerationScorer` of the trainer logs."""
    scorers = callbacks_of(trainer, GenerationScorerMixin)
    return {key: spec for scorer in scorers for key, spec in scorer.specs.items()}


def resolve_mode(trainer: Trainer, key: str, mode: Mode | None, argument: str = "mode") -> Mode:
    """Return the better direction of a logged key: the given one, else the declared one.

    A `GenerationScorer` declares the direction of its scores, and the `Reward` of the module the
    directions of its components; `reward/total` and `reward/shaped` are better when higher, also of
    a module without a `Reward`.
    """
    totals: dict[str, Mode] = {"reward/total": "max", "reward/shaped": "max"}
    declared: dict[str, Mode] = {}
    module = trainer.lightning_module
    if isinstance(module, ShapedModule):
        components = module.reward.components
        declared = {f"reward/{name}": each.spec.mode for name, each in components.items()}
        # Deviations of an ensemble's members.
        declared |= totals | {f"reward/{name}": "min" for name in module.reward.derived}
    declared |= {name: spec.mode for name, spec in scored_specs(trainer).items()}
    given = mode or totals.get(key)
    return better_direction(key, given, declared.get(key), declared, argument)


def known_modes(trainer: Trainer) -> dict[str, Mode]:
    """Return the better direction of each key that a scorer declares or a callback monitors."""
    scored = {key: spec.mode for key, spec in scored_specs(trainer).items()}
    kinds = ("EarlyStopping", "ModelCheckpoint")
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    watching = [each for each in callbacks if any(is_instance(each, kind) for kind in kinds)]
    rules = [each.rule for each in callbacks_of(trainer, DecidingMixin)]
    watching += [rule for rule in rules if isinstance(rule, StopRule)]
    return {each.monitor: each.mode for each in reversed(watching) if each.monitor} | scored
