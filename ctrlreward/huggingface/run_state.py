"""State of the callbacks in `TrainerState`, and the metrics that the rules read from it.

`TrainerState.stateful_callbacks` is written to the `trainer_state.json` of each checkpoint and
restored from it. In one entry of it, `GenerationScorer` leaves its scores by prompt, and each rule
its state, so that callbacks find each other without the trainer and a resumed run decides as an
uninterrupted one. The entry has the name of a callback's class, as transformers expects. (An
`ExportableState` would be replaced by a new callback from JSON, without scorers.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ctrlreward.arguments import Mode, better_direction
from ctrlreward.files import finite_or_none
from ctrlreward.functional.means import valid_row_means
from ctrlreward.functional.sequential import PromptScores
from ctrlreward.ranks import on_rank_zero
from ctrlreward.scorers.base import Scores
from ctrlreward.selection.decider import stale_keys

PREFIX = "eval_"
_OURS = "ctrlreward"
_FOLD = "_ctrlreward_last_logged"
_RULES = "_ctrlreward_rules"

# Metric of rollouts in TRL's trainers → the same metric of `PolicyTuner`.
_AS_UNDER_LIGHTNING = {"reward": "reward/total", "kl": "policy/kl", "entropy": "policy/entropy"}


class Restored(TrainerCallback):
    """Does nothing, in place of a second callback that would restore the same state."""


class RestoresItself:
    """Callback that reads its state from the trainer's when training begins.

    With `restore_callback_states_from_checkpoint` a trainer makes a new callback from the arguments
    in a checkpoint and removes the one of its class. From ours it makes a `Restored`.
    """

    def __new__(cls, *_: object, restored: bool = False, **__: object) -> Any:  # noqa: D102
        return Restored() if restored else super().__new__(cls)


def join_state(state: TrainerState, callback: RestoresItself) -> None:
    """Give a callback an entry in the trainer's state; the first one has the data of all."""
    callbacks = cast(dict[str, Any], state.stateful_callbacks)  # a list only in its constructor
    first = {"args": {"restored": True}, "attributes": {}, _OURS: {}}
    has_data = any(_OURS in each for each in callbacks.values())
    callbacks.setdefault(type(callback).__name__, [] if has_data else first)


def stored(state: TrainerState) -> dict[str, Any]:
    """Return the plain data that the callbacks keep in the trainer's state."""
    callbacks = cast(dict[str, Any], state.stateful_callbacks)
    entries = (each for each in callbacks.values() if isinstance(each, dict) and _OURS in each)
    found: dict[str, Any] = next(entries, {_OURS: {}})[_OURS]
    return found


def rules_of(state: TrainerState) -> dict[str, object]:
    """Return the callbacks that decide in this training, by the key of their states."""
    rules: dict[str, object] = vars(state).setdefault(_RULES, {})
    return rules


def scorers(state: TrainerState) -> dict[str, dict[str, Any]]:
    """Return name → `step`, `modes` and `by_prompt` of each `GenerationScorer`."""
    found: dict[str, dict[str, Any]] = stored(state).setdefault("scores", {})
    return found


def read_validation(
    state: TrainerState,
    metrics: Mapping[str, float],
    decided: int = -1,
    awaited: Callable[[str], bool] = lambda key: False,
) -> tuple[dict[str, float], set[str], dict[str, Scores]]:
    """Return metrics, keys without a new value, and the values of the prompts.

    The metrics are rank 0's, on all ranks. `eval_score/sim` is also `score/sim`, unless training is
    `awaited` to log this key; other keys have their last value. The last decision was at the step
    `decided`.
    """
    last, steps = _last_logged(state)
    logged = {**last, **metrics}
    numbers = {key: float(v) for key, v in logged.items() if isinstance(v, int | float)}
    numbers |= {key: math.nan for key, value in logged.items() if value is None}
    logged_before = {key: steps[key] for key in numbers.keys() - metrics.keys()}
    evaluated = {key for key in logged_before if key.startswith(PREFIX)}
    stale = stale_keys(logged_before, evaluated, state.global_step, decided)
    for key in [key for key in numbers if key.startswith(PREFIX)]:
        name = key.removeprefix(PREFIX)
        if name not in numbers and not awaited(name):
            numbers[name] = numbers[key]
            stale |= {name} if key in stale else set()
    evidence: dict[str, Scores] = {}
    for scored in scorers(state).values():
        if scored["step"] == state.global_step:
            for key, table in scored["by_prompt"].items():
                means = valid_row_means(np.array(table, np.float64))
                row = PromptScores(means, scored.get("measure", ""))
                evidence |= {key: row, PREFIX + key: row}
        else:
            stale |= {each for key in scored["modes"] for each in (key, PREFIX + key)}
    return *on_rank_zero(lambda: (numbers, stale)), evidence


def plain_names(state: TrainerState) -> dict[str, str]:
    """Return logged key → the same without `eval_`, unless a key of training has this name."""
    logged = {key for row in state.log_history for key in row}
    return {
        key: name
        for key in logged
        if key.startswith(PREFIX) and (name := key.removeprefix(PREFIX)) not in logged
    }


def history(state: TrainerState) -> list[dict[str, Any]]:
    """Return the log as the rows that a `HistoryLogger` would have."""
    names = _AS_UNDER_LIGHTNING | plain_names(state)
    rows = cast(list[dict[str, Any]], state.log_history)
    numbers = [{k: v for k, v in row.items() if isinstance(v, int | float)} for row in rows]
    return [
        {**{names.get(k, k): finite_or_none(v) for k, v in row.items()}, "step": row["step"]}
        for row in numbers
    ]


def _last_logged(state: TrainerState) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the last logged value of each key, and its step.

    The fold stays with the state, so that each row is read once, but outside of its fields.
    """
    rows = cast(list[dict[str, Any]], state.log_history)
    log, read, values, steps = vars(state).get(_FOLD, (rows, 0, {}, {}))
    if log is not rows:  # a resumed run has another list
        read, values, steps = 0, {}, {}
    for row in rows[read:]:
        values |= row
        steps |= dict.fromkeys(row, row.get("step") or 0)
    vars(state)[_FOLD] = rows, len(rows), values, steps
    return values, steps


def awaits(args: TrainingArguments, state: TrainerState, key: str) -> bool:
    """Return whether this is a key of training, which has logged nothing yet but will."""
    if key not in ("loss", *_AS_UNDER_LIGHTNING) and not key.startswith("rewards/"):
        return False
    _, steps = _last_logged(state)
    if any(not each.startswith(PREFIX) for each in steps.keys() - {"epoch", "step"}):
        return False
    by_steps = args.logging_strategy == IntervalStrategy.STEPS
    will_log = args.logging_first_step or not by_steps or state.logging_steps <= state.max_steps
    return will_log and args.logging_strategy != IntervalStrategy.NO


def last_evaluated(state: TrainerState, key: str) -> float | None:
    """Return the step at which an evaluation last logged a key, with or without `eval_`."""
    _, steps = _last_logged(state)
    logged = key if key in steps or key.startswith(PREFIX) else PREFIX + key
    return steps.get(logged) if logged.startswith(PREFIX) else None


def directions(state: TrainerState) -> dict[str, Mode]:
    """Return the better direction of each key of a `GenerationScorer`."""
    return {
        key: mode for scored in scorers(state).values() for key, mode in scored["modes"].items()
    }


def ranges(state: TrainerState) -> dict[str, list[float | None]]:
    """Return the smallest and largest value of each key of a `GenerationScorer`, of both names."""
    declared = [scored.get("ranges", {}) for scored in scorers(state).values()]
    names = {key: bounds for each in declared for key, bounds in each.items()}
    return names | {PREFIX + key: bounds for key, bounds in names.items()}


def resolve_mode(state: TrainerState, key: str, mode: Mode | None, argument: str = "mode") -> Mode:
    """Return the better direction of a key: the given one, else the declared one.

    A loss is better when lower, the reward that TRL logs when higher. A mode that contradicts the
    score, or lacks for an undeclared key, is a ValueError.
    """
    known = directions(state)
    name = key.removeprefix(PREFIX)
    is_loss = name == "loss" or name.endswith("_loss")
    usual: Mode | None = "min" if is_loss else "max" if name == "reward" else None
    if name.startswith("rewards/"):  # of a function, which may be a cost
        mode = mode or "max"
    declared = known.get(name) or usual
    return better_direction(key, mode, declared, known, argument)
