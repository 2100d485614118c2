"""State of the callbacks in `TrainerState`, and the metrics that the rules read from it.

`TrainerState.stateful_callbacks` is written to the `trainer_state.json` of each checkpoint and
restored from it. In one entry of it, `GenerationScorer` leaves its counters, and each rule its
state, so that a resumed run decides as an uninterrupted one. The entry has the name of a callback's
class, as transformers expects. (An `ExportableState` would be replaced by a new callback from JSON,
without scorers.) What the callbacks of one training share beyond that is in its `Run`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from transformers import TrainerCallback
from transformers import TrainerState as State

from ctrlreward.arguments import Mode, better_direction
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection.metrics import Evidence, Snapshot, direction_of_name

PREFIX = "eval_"
_OURS = "ctrlreward"

# Metric of rollouts in TRL's trainers → the same metric of `PolicyTuner`.
_AS_UNDER_LIGHTNING = {"reward": "reward/total", "kl": "policy/kl", "entropy": "policy/entropy"}


class Restored(TrainerCallback):
    """Does nothing, in place of a second callback that would restore the same state."""


class RestoresItself:
    """Callback that reads its state from the trainer's when training begins.

    With `restore_callback_states_from_checkpoint` a trainer makes a new callback from the arguments
    in a checkpoint and removes the one of its class. From ours it makes a `Restored`.
    """

    def __new__(cls, *_: object, restored: bool = False, **__: object) -> Any:
        return Restored() if restored else super().__new__(cls)


def stored(state: State) -> dict[str, Any]:
    """Return the plain data that our callbacks keep in the trainer's state, {} without any."""
    callbacks = cast(dict[str, Any], state.stateful_callbacks)  # a list only in its constructor
    entries = (each for each in callbacks.values() if isinstance(each, dict) and _OURS in each)
    found: dict[str, Any] = next(entries, {_OURS: {}})[_OURS]
    return found


def join_state(state: State, callback: RestoresItself) -> dict[str, Any]:
    """Return what `stored` returns, with an entry for it."""
    if not stored(state):
        entry = {"args": {"restored": True}, "attributes": {}, _OURS: {"scores": {}}}
        cast(dict[str, Any], state.stateful_callbacks)[type(callback).__name__] = entry
    return stored(state)


@dataclass
class Run:
    """What our callbacks share in one training, and checkpoints do not contain.

    `rules` are the callbacks that decide, by the key of their states; `evidence` is the step of the
    last scores of each `GenerationScorer`, by its name, and their values by prompt.
    """

    rules: dict[str, object] = field(default_factory=dict)
    evidence: dict[str, tuple[int, Evidence]] = field(default_factory=dict)
    metrics: Mapping[str, float] | None = None  # of the evaluation that the snapshot is of
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(-1, {}, ()))
    added: dict[str, float] = field(default_factory=dict)  # to all snapshots of this step

    @staticmethod
    def of(state: State) -> Run:
        """Return the run of a trainer's state, which carries it outside of its fields."""
        run: Run = vars(state).setdefault("_ctrlreward_run", Run())
        return run

    def take(self, state: State, metrics: Mapping[str, float]) -> Snapshot:
        """Return the snapshot of an evaluation that logged `metrics`, rank 0's on all ranks."""
        if self.metrics is not metrics:
            if self.snapshot.step != state.global_step:
                self.added = {}
            own = self._snapshot(state, metrics)
            shared = on_rank_zero(lambda: (own.metrics, own.fresh, own.trained))
            # All ranks have the evidence, whose digests do not pickle.
            whole = Snapshot(own.step, shared[0], shared[1], own.evidence, shared[2])
            self.metrics, self.snapshot = metrics, whole.having(**self.added)
        return self.snapshot

    def add(self, **values: float) -> None:
        """Add values to the snapshots of this step, for the rules that decide later."""
        self.added |= values
        self.snapshot = self.snapshot.having(**values)

    def _snapshot(self, state: State, metrics: Mapping[str, float]) -> Snapshot:
        """Return the last value of each key; `eval_score/sim` is also `score/sim`."""
        step = state.global_step
        logged: dict[str, Any] = {}
        steps: dict[str, int] = {}  # at which each key was logged last
        for row in (*cast(list[dict[str, Any]], state.log_history), {**metrics, "step": step}):
            logged |= row
            steps |= dict.fromkeys(row, int(row.get("step") or 0))
        values = {
            key: math.nan if value is None else float(value)
            for key, value in logged.items()
            if isinstance(value, int | float | None) and key not in ("step", "epoch")
        }
        scored = [rows for scored_step, rows in self.evidence.values() if scored_step == step]
        evidence = {PREFIX + key: row for rows in scored for key, row in rows.items()}
        trained = {
            key: steps[key] for key in values if not (key.startswith(PREFIX) or key in metrics)
        }
        fresh = {key for key in values.keys() - trained if steps[key] == step}
        for key in [key for key in values if key.startswith(PREFIX)]:
            name = key.removeprefix(PREFIX)
            if name not in values and not is_trained(name):
                values[name] = values[key]
                fresh |= {name} if key in fresh else set()
                evidence |= {name: evidence[key]} if key in evidence else {}
        return Snapshot(step, values, fresh, evidence, trained)


def is_trained(key: str) -> bool:
    """Return whether trainers log this key in training."""
    return key in ("loss", *_AS_UNDER_LIGHTNING) or key.startswith("rewards/")


def plain_names(state: State) -> dict[str, str]:
    """Return logged key → the same without `eval_`, unless a key of training has this name."""
    logged = {key for row in state.log_history for key in row}
    return {
        key: name
        for key in logged
        if key.startswith(PREFIX) and (name := key.removeprefix(PREFIX)) not in logged
    }


def directions(state: State) -> dict[str, Mode]:
    """Return the better direction of each key of a `GenerationScorer`."""
    scorers = stored(state).get("scores", {}).values()
    return {key: mode for scorer in scorers for key, mode in scorer["modes"].items()}


def resolve_mode(state: State, key: str, mode: Mode | None, argument: str = "mode") -> Mode:
    """Return the better direction of a key: the given one, else the declared one.

    A loss is better when lower, the reward that TRL logs when higher. A mode that contradicts the
    score, or lacks for an undeclared key, is a ValueError.
    """
    known = directions(state)
    name = key.removeprefix(PREFIX)
    usual = direction_of_name(name)
    declared = known.get(name) or usual
    if name.startswith("rewards/"):  # of a function, which may be a cost
        mode, declared = mode or usual, None
    return better_direction(key, mode, declared, known, argument)
