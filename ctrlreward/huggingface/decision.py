"""Callbacks that decide at evaluations: keep a checkpoint, stop training, raise an alarm."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy

from ctrlreward.arguments import Mode, counted
from ctrlreward.huggingface.generation import add_to_run, as_shown, tracked_runs
from ctrlreward.huggingface.run_state import (
    PREFIX,
    RestoresItself,
    awaits,
    directions,
    join_state,
    last_evaluated,
    ranges,
    read_validation,
    resolve_mode,
    rules_of,
    stored,
)
from ctrlreward.lightning_package import package_of
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule
from ctrlreward.selection.alarm import LEVEL, HeldOutMode, Reference
from ctrlreward.selection.decider import Decider, Decides, Keeps, KeepsFront
from ctrlreward.selection.metrics import Bounds, NotLogged, Snapshot

log = logging.getLogger(__name__)


class DecisionCallback(RestoresItself, Decides, TrainerCallback):
    """Applies a rule of `ctrlreward.selection` once per evaluated step of training.

    With several evaluation sets it waits for the set that has its keys. Evaluations outside of
    training are ignored. The rule's state is restored with a checkpoint.
    """

    saves = False  # whether the decision is on a checkpoint
    state_key = ""  # Lightning reads it before it calls `setup`

    def __init__(self, key: str, rule: Any) -> None:
        self.decider = Decider(rule)
        self._given = rule  # with directions as given
        self._key = f"{type(self).__name__} {key}"
        self._training = False
        self._waited = -1  # step of an evaluation that it waits for another set of
        self._save = self._stop = False  # the last decision, for a `control` that lost it
        self._had_stopped = False
        self._missing: ValueError | None = None
        self._evaluated, self._started = False, 0  # in this training, and its first step

    def _begin(self, state: TrainerState, declared: Mapping[str, Bounds]) -> None:
        """Set the directions and ranges that scorers declare when training begins."""
        try:
            self.decider.begin(partial(resolve_mode, state), declared)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None
        stored(state).setdefault("rules", {})[type(self.rule).__name__] = asdict(self.rule)

    def resume(self) -> bool:
        """Return whether a resumed run had stopped, and would stop with these settings."""
        return False

    def path_of(self, args: TrainingArguments, state: TrainerState, step: int) -> Path | None:
        """Return the folder of a checkpoint, None if it is not on disk."""
        folder = Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        return folder if folder.is_dir() else None

    def act(
        self, decision: Any, args: TrainingArguments, state: TrainerState, metrics: dict[str, float]
    ) -> None:
        """Apply a decision; by default, save the checkpoint if it is kept."""
        self._save = decision.keep

    def setup(self, trainer: Any, *_: object, **__: object) -> None:
        """Raise a TypeError: transformers does not call this, but a trainer of Lightning does."""
        ours, name = package_of(trainer).ours, type(self).__name__
        raise TypeError(
            f"this {name} is a callback for Trainer and TRL, but the trainer is one of Lightning. "
            f"Use `from {ours} import {name}`."
        )

    def on_exception(self, *_: object, **__: object) -> None:
        """Do nothing: Lightning calls this after the error of `setup`."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start, or continue a resumed run; one that had stopped runs one more step."""
        if args.eval_strategy == IntervalStrategy.NO:
            raise ValueError(
                f"{type(self).__name__} decides at evaluations, but eval_strategy is 'no'. Set "
                "eval_strategy='steps' and eval_steps, or 'epoch'."
            )
        if rules_of(state).setdefault(self._key, self) is not self:
            raise ValueError(
                f"two callbacks are {self._key!r}, and a checkpoint has one state of this name. "
                "Remove one of them, or give two ProxyGuards different names."
            )
        self._training, self._missing, self.decider = True, None, Decider(self._given)
        self._evaluated, self._started, self._waited = False, state.global_step, -1
        self._save = self._stop = self._had_stopped = False
        join_state(state, self)
        before = stored(state).get(self._key)
        if state.global_step and before is not None:
            self._begin(state, {})  # some scorers may begin later
            self.decider.load(before)
            if self.saves and not state.is_hyper_param_search:  # whose folder is not known yet
                path_of, steps = partial(self.path_of, args, state), self.rule.steps(self.state)
                on_disk = on_rank_zero(lambda: [step for step in steps if path_of(step)])
                self.decider.state = self.rule.available(self.state, on_disk)
            self._had_stopped = self.resume()
            control.should_training_stop |= self._had_stopped
            if self._had_stopped:
                self.say(state, "this run has already stopped, and stops again")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the decisions of a run that had stopped, and a stop that a copy of control lost."""
        control.should_training_stop |= self._stop
        if self._had_stopped:
            control.should_evaluate = control.should_save = False

    on_epoch_end = on_step_end

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raise for a wrong key or direction at the first step, or if no set had the keys."""
        self._save = False
        if state.global_step == self._started:  # all scorers have begun
            self._begin(state, ranges(state))
        if self._missing is not None:
            raise self._missing

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make no more decisions; warn of a training without an evaluation."""
        self._training = False
        if self._missing is not None:
            raise self._missing
        if not self._evaluated and state.global_step > self._started:
            self.say(
                state,
                "training ended before the first validation. eval_steps is more than the "
                f"{counted(state.global_step, 'step')} of the run. Evaluate more often.",
            )

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Decide once per step, when all keys have the values of this evaluation.

        Another evaluation of the same weights only repeats what was decided. The `control` of an
        evaluation inside a callback can be a copy that is lost.
        """
        self._evaluated |= self._training
        if not self._training or (self.saves and not state.global_step):  # nothing is saved at 0
            return
        if state.global_step != self.decider.step:
            self._decide(args, state, kwargs.get("metrics", {}))
        if state.global_step == self.decider.step:
            control.should_save |= self._save
            control.should_training_stop |= self._stop

    def _decide(
        self, args: TrainingArguments, state: TrainerState, metrics: dict[str, float]
    ) -> None:
        self._begin(state, ranges(state))
        try:
            decided, awaited = self.decider.step, partial(awaits, args, state)
            values, stale, evidence = read_validation(state, metrics, decided, awaited)
            if self._waits(state, stale):
                return
            fresh = values.keys() - stale
            decision = self.decider.decide(Snapshot(state.global_step, values, fresh, evidence))
        except ValueError as error:  # unless another set has the keys
            if not (isinstance(error, NotLogged) and awaits(args, state, error.key)):
                hint = "Add the callback that logs it before this one"
                self._missing = ValueError(f"{type(self).__name__}: {error}. {hint}")
            return
        self._missing = None
        stored(state)[self._key] = self.decider.to_dict()
        if state.global_step == self.decider.step:
            self._waited = -1
            self.act(decision, args, state, metrics)

    def _waits(self, state: TrainerState, stale: Collection[str]) -> bool:
        """Return whether another set of this evaluation will log a key, as at the last decision."""
        if self._waited not in (-1, state.global_step):
            return False
        decided, declared = self.decider.step, directions(state)
        # Of constraints and ties the rule would read an old value.
        read_old = self.rule.keys[1:] if isinstance(self.rule, BestRule) else ()
        waits = any(
            key in stale
            and key.removeprefix(PREFIX) not in declared
            and last_evaluated(state, key) == decided
            for key in read_old
        )
        if waits:
            self._waited = state.global_step
        return waits

    def say(self, state: TrainerState, reason: str) -> None:
        """Log a decision, from rank 0."""
        if state.is_world_process_zero:
            log.warning("%s at step %d: %s", type(self).__name__, state.global_step, reason)


class RewardCheckpoint(Keeps, DecisionCallback):
    """Selects the checkpoint with the best held-out score (`ctrlreward.selection.BestRule`).

    Saves a checkpoint at each evaluation whose score is the best so far, next to checkpoints of the
    trainer's `save_strategy`, and sets `state.best_global_step` and `state.best_model_checkpoint`:
    `save_total_limit` keeps the selected checkpoint, and `load_best_model_at_end=True` loads it.
    `metric_for_best_model` and
    `state.best_metric` remain the trainer's. If no evaluation met the constraints, the model of the
    last step remains, with a warning. An evaluation before the first step (`eval_on_start`) has no
    checkpoint, and is not a candidate. With `save_strategy="best"` the trainer writes no other
    checkpoint to resume from.

    Further arguments are as in `BestRule`.

    Args:
        monitor: Key of the score, with or without `eval_`.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that a
            `GenerationScorer` declares, to "min" for a loss, and to "max" for TRL's `reward`.
        constraints: Key → smallest and largest allowed value, both inclusive, None for no bound.

    Raises:
        ValueError: A setting is out of range; at the start: an unknown direction; after the first
            evaluation: a key is not logged.
    """

    saves = True

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: Mode | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        level: float = 0.05,
    ) -> None:
        self.monitor, self.mode = monitor, mode
        self._strategy: SaveStrategy | None = None  # the save_strategy of the trainer
        self._folder: Path | None = None  # of the run's checkpoints
        self._earlier: Path | None = None  # of the checkpoints of the run that this one resumes
        super().__init__(monitor, BestRule(monitor, mode, 1, constraints or {}, level))
        self.constraints = dict(self.rule.constraints)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the trainer keeps the checkpoints that the rule chooses from."""
        self._return_strategy(args)  # of a run that ended with an error in an evaluation
        is_trial = state.is_hyper_param_search  # whose folder is known when it saves
        self._folder = None if is_trial else Path(args.output_dir or ".")
        before = state.best_model_checkpoint
        self._earlier = None if before is None else Path(before).parent
        super().on_train_begin(args, state, control, **kwargs)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Decide; the trainer then saves, keeps and loads the selected checkpoint.

        After this hook the trainer compares `metric_for_best_model`. Until the next hook
        `save_strategy` equals none, so that it tracks this metric and leaves the selection to the
        rule.
        """
        super().on_evaluate(args, state, control, **kwargs)
        if not self._training:
            return
        compares = args.metric_for_best_model is not None
        if compares and self._strategy is None and args.save_strategy != SaveStrategy.NO:
            self._strategy = SaveStrategy(args.save_strategy)
            args.save_strategy = equal_to_none(self._strategy)
            if self._strategy == SaveStrategy.BEST:
                control.should_save = self._save
        self._name_selected(args, state, about_to_save=control.should_save)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Name the folder of the selected checkpoint, as soon as it exists."""
        self._return_strategy(args)
        self._folder = self._folder or _saved_in(args, state.global_step)
        self._save = False
        self._name_selected(args, state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Name the folder of the selected checkpoint only if it was saved."""
        if self._return_strategy(args):
            self._name_selected(args, state)
        super().on_step_begin(args, state, control, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save at the end of an epoch, if the trainer has found no `save_strategy` before."""
        if self._return_strategy(args) and args.save_strategy == SaveStrategy.EPOCH:
            control.should_save = True
        super().on_epoch_end(args, state, control, **kwargs)

    def _return_strategy(self, args: TrainingArguments) -> bool:
        """Return whether `save_strategy` had to be set to the user's again."""
        if self._strategy is None:
            return False
        args.save_strategy, self._strategy = self._strategy, None
        return True

    def _name_selected(
        self, args: TrainingArguments, state: TrainerState, about_to_save: bool = False
    ) -> None:
        """Name the selected step, and its folder if it exists or is about to."""
        best = self.selected_step
        state.best_global_step = state.best_model_checkpoint = None
        if best is None or self._folder is None:
            return
        path = self.path_of(args, state, best)
        if about_to_save and best == state.global_step:
            path = self._folder / f"{PREFIX_CHECKPOINT_DIR}-{best}"
        if path is not None:
            state.best_global_step, state.best_model_checkpoint = best, str(path)

    def path_of(self, args: TrainingArguments, state: TrainerState, step: int) -> Path | None:
        """Return the folder of a checkpoint of this run, or of the run that it resumes."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{step}"
        found = (place / name for place in (self._folder, self._earlier) if place is not None)
        return next((path for path in found if path.is_dir()), None)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the selection."""
        self._return_strategy(args)
        super().on_train_end(args, state, control, **kwargs)
        last = ": the model has the weights of the last step" if self.selected_step is None else ""
        self.say(state, f"{self.reason}{last}")


def equal_to_none(strategy: SaveStrategy) -> SaveStrategy:
    """Return a strategy that equals no other one, but is shown, saved and copied as this one.

    The trainer writes its arguments to each checkpoint before the next hook.
    """
    other = str.__new__(SaveStrategy, "")
    other._name_, other._value_ = strategy.name, strategy.value
    return other


def _saved_in(args: TrainingArguments, step: int) -> Path:
    """Return the folder, perhaps of a trial in `output_dir`, that has the checkpoint just saved."""
    output, name = Path(args.output_dir or "."), f"{PREFIX_CHECKPOINT_DIR}-{step}"
    found = [path for path in (output / name, *output.glob(f"*/{name}")) if path.is_dir()]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=output / name).parent


class ParetoCheckpoint(KeepsFront, DecisionCallback):
    """Saves the checkpoints on the Pareto front of several scores, by `ParetoRule`.

    The trainer's `save_total_limit` must be None, as it would remove them. Dominated checkpoints
    stay on disk; `kept` names the checkpoints of the front.

    Args:
        metrics: Key → "max" or "min", or keys whose direction a `GenerationScorer` declares.

    Raises:
        ValueError: Fewer than two metrics, or an unknown direction; at the start: the trainer has a
            `save_total_limit`; after the first evaluation: a key is not logged.
    """

    saves = True

    def __init__(self, metrics: Mapping[str, Mode] | Sequence[str]) -> None:
        given: Any = metrics  # the rule rejects a string
        if not isinstance(metrics, Mapping | str):
            given = dict.fromkeys(metrics)
        rule = ParetoRule(given)
        super().__init__(", ".join(rule.metrics), rule)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the trainer keeps the front."""
        super().on_train_begin(args, state, control, **kwargs)
        if args.save_total_limit is not None:
            raise ValueError(
                f"save_total_limit = {args.save_total_limit} would remove checkpoints of the "
                "Pareto front. Leave it out."
            )


class RewardEarlyStopping(DecisionCallback):
    """Early stopping that counts each held-out score once (`ctrlreward.selection.StopRule`).

    A resumed run decides like an uninterrupted one. The `StopState` in `state` has the reason.
    Further arguments are as in `StopRule`.

    Args:
        monitor: Key of the score, with or without `eval_`.
        mode: As in `RewardCheckpoint`.
        patience: Number of scores in a row without improvement that stops training.

    Raises:
        ValueError: A setting is out of range; at the start: its direction is unknown; after the
            first evaluation: the key is not logged.
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: Mode | None = None,
        patience: int = 3,
        min_delta: float | Literal["noise"] = 0.0,
        min_steps: int = 0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_finite: bool = True,
        decline: bool = False,
        level: float = 0.05,
    ) -> None:
        self.monitor, self.mode = monitor, mode
        limits = (min_steps, stopping_threshold, divergence_threshold, check_finite)
        rule = StopRule(monitor, mode, patience, min_delta, *limits, decline, level)
        super().__init__(monitor, rule)

    def resume(self) -> bool:
        """Return whether the run had stopped, unless its new settings would not have stopped it."""
        return self.decider.resume()

    def act(
        self, decision: Any, args: TrainingArguments, state: TrainerState, metrics: dict[str, float]
    ) -> None:
        """Stop training."""
        self._stop = decision.stop
        if decision.stop:
            self.say(state, decision.reason)


class ProxyGuard(DecisionCallback):
    """Alarm on reward hacking: the optimised metric improves while a held-out metric declines.

    Decides by `ctrlreward.selection.AlarmRule`, on the scores by prompt of a `GenerationScorer`;
    without them a warning says that no alarm is possible. Adds `eval_<name>/p_value` and
    `eval_<name>/alarm` (1 or 0) to the metrics of the evaluation and to `log_history`. When an
    alarm begins, a warning is logged, and the runs of Weights & Biases and trackio get an alert. To
    exclude checkpoints
    under alarm, add `RewardCheckpoint(..., constraints={"guard/alarm": (None, 0)})` after this
    callback. Further arguments are as in `AlarmRule`.

    Args:
        proxy: Key of the optimised metric: `"reward"`, as TRL logs it, or a loss.
        held_out: Key of a metric that is not optimised, several keys, or key → "max", "min", or
            "drift" if any change is a decline.
        proxy_mode: "max" or "min". Defaults to the direction that a `GenerationScorer` declares, to
            "max" for `reward` and `rewards/…`, and to "min" for a loss.
        held_out_mode: The same for held-out metrics without a direction; or "drift".
        stop: Stop training at an alarm.
        name: Prefix of the keys. Two guards in one trainer need different names.

    Raises:
        ValueError: A setting is out of range; at the start: a direction is unknown; after the first
            evaluation: a key is not logged.
    """

    def __init__(
        self,
        proxy: str,
        held_out: str | Sequence[str] | Mapping[str, HeldOutMode],
        proxy_mode: Mode | None = None,
        held_out_mode: HeldOutMode | None = None,
        level: float = LEVEL,
        stop: bool = False,
        name: str = "guard",
        reference: Reference = "first",
        margin: float | Mapping[str, float] | None = None,
    ) -> None:
        settings = (level, reference, margin)
        rule = AlarmRule(proxy, held_out, proxy_mode, held_out_mode, *settings)
        super().__init__(f"{proxy} {', '.join(rule.modes)} {name}", rule)
        self.proxy, self.held_out = proxy, held_out
        self.proxy_mode, self.held_out_mode = proxy_mode, held_out_mode
        self.stop = stop
        self.name = name
        self._warned = False

    def resume(self) -> bool:
        """Return whether an alarm had stopped the run, and would with these settings."""
        return self.decider.resume() and self.stop

    def act(
        self, decision: Any, args: TrainingArguments, state: TrainerState, metrics: dict[str, float]
    ) -> None:
        """Log the test, warn when an alarm begins, and stop training if asked to."""
        if decision.untestable and not self._warned:
            self.say(state, f"no alarm is possible: {decision.reason}")
            self._warned = True
        if decision.p_value is None:
            return
        values = {"alarm": float(decision.alarm), "p_value": decision.p_value}
        row = {f"{PREFIX}{self.name}/{key}": value for key, value in values.items()}
        if row.keys() & metrics.keys():
            raise ValueError(f"two ProxyGuards have the name {self.name!r}. Pass name='...'.")
        metrics.update(row)
        state.log_history.append({**row, "step": state.global_step})
        runs = tracked_runs(args) if state.is_world_process_zero else []
        for module, run in runs:
            add_to_run(module, run, self.name, as_shown(row), state.global_step)
        if decision.alarm and not self.decider.before.alarm:
            self.say(state, decision.reason)
            title = f"{self.name}: possible reward hacking"
            for module, run in runs:
                run.alert(title, decision.reason, level=module.AlertLevel.WARN)
        self._stop = decision.alarm and self.stop
