"""Callbacks that decide at evaluations: keep a checkpoint, stop training, raise an alarm."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy

from ctrlreward.arguments import Mode
from ctrlreward.huggingface.generation import add_to_run, wandb_run
from ctrlreward.huggingface.run_state import (
    PREFIX,
    RestoresItself,
    Run,
    directions,
    is_trained,
    join_state,
    resolve_mode,
)
from ctrlreward.ranks import on_rank_zero
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule
from ctrlreward.selection.alarm import HeldOutMode
from ctrlreward.selection.decider import (
    Decider,
    Decides,
    Keeps,
    KeepsFront,
    check_order,
    given_alone,
)
from ctrlreward.selection.metrics import Bounds, read
from ctrlreward.selection.pareto import pareto_rule

log = logging.getLogger(__name__)


class DecisionCallback(RestoresItself, Decides, TrainerCallback):
    """Applies a rule of `ctrlreward.selection` once per evaluated step of training.

    With several evaluation sets it waits for the set that has its keys. Evaluations outside of
    training are ignored. The rule's state is restored with a checkpoint.
    """

    saves = False  # whether the decision is on a checkpoint
    stop = False  # whether a decision may stop training

    def __init__(self, name: str, rule: Any) -> None:
        self.decider = Decider(rule)
        self._key = f"{type(self).__name__} {name}"
        self._training = self._begun = False
        self._save = self._stop = False  # the last decision, for a `control` that lost it
        self._had_stopped = False
        self._missing: ValueError | None = None
        self._folders: list[Path] = []  # of the checkpoints of this run, and of the one it resumes

    def act(self, decision: Any, before: Any, args: Arguments, state: State) -> None:
        """Apply a decision, `before` which the state was this; by default, save what is kept."""
        self._save = decision.keep

    def path_of(self, step: int) -> Path | None:
        """Return the folder of a checkpoint of this run, or of the run that it resumes."""
        paths = (folder / f"{PREFIX_CHECKPOINT_DIR}-{step}" for folder in self._folders)
        return next((path for path in paths if path.is_dir()), None)

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Start a training; the rule itself begins when all scorers have."""
        if args.eval_strategy == IntervalStrategy.NO:
            raise ValueError(
                f"{type(self).__name__} decides at evaluations, but eval_strategy is 'no'. Set "
                "eval_strategy='steps' and eval_steps, or 'epoch'."
            )
        if Run.of(state).rules.setdefault(self._key, self) is not self:
            raise ValueError(
                f"two callbacks are {self._key!r}. Remove one, or rename a ProxyGuard."
            )
        self.decider, self._missing = Decider(self.decider.given), None
        self._training, self._begun = True, False
        self._save = self._stop = self._had_stopped = False
        # Of a trial the folder is known when it saves.
        self._folders = [] if state.is_hyper_param_search else [Path(args.output_dir or ".")]
        if state.best_model_checkpoint is not None:
            self._folders.append(Path(state.best_model_checkpoint).parent)

    def _begin(self, state: State) -> None:
        """Take the directions that scorers declare, and continue a resumed run.

        A run that had stopped makes one more step.
        """
        self._begun = True
        keys = (key.removeprefix(PREFIX) for key in self.rule.keys)
        check_order(self, keys, Run.of(state).rules.values())
        try:
            self.decider.begin(partial(resolve_mode, state), self._declared(state))
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None
        plain = join_state(state, self)
        plain.setdefault("rules", {})[type(self.rule).__name__] = asdict(self.rule)
        if self._key not in plain:
            return
        self.decider.load(plain[self._key])
        if self.saves and not state.is_hyper_param_search:
            steps = self.rule.steps(self.state)
            on_disk = on_rank_zero(lambda: [step for step in steps if self.path_of(step)])
            self.decider.state = self.rule.available(self.state, on_disk)
        self._had_stopped = self._stop = self.decider.resume() and self.stop
        if self._had_stopped:
            self.say(state, "this run has already stopped, and stops again")

    def _declared(self, state: State) -> list[str]:
        """Return the keys that may be logged later: of scorers, and of training."""
        scores = [each for key in directions(state) for each in (key, PREFIX + key)]
        return scores + [key for key in self.rule.keys if is_trained(key)]

    def on_step_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Raise for a wrong key or direction at the first step, or if no set had the keys."""
        self._save = False
        if not self._begun:
            self._begin(state)
        if self._missing is not None:
            raise self._missing

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Keep the decisions of a run that had stopped, and a stop that a copy of control lost."""
        control.should_training_stop |= self._stop
        if self._had_stopped:
            control.should_evaluate = control.should_save = False

    on_epoch_end = on_step_end

    def on_evaluate(
        self, args: Arguments, state: State, control: Control, metrics: Any = None, **_: Any
    ) -> None:
        """Decide, unless a key has no new value yet.

        Another evaluation of the same weights only repeats what was decided. The `control` of an
        evaluation inside a callback can be a copy that is lost.
        """
        if not self._training or (self.saves and not state.global_step):  # nothing is saved at 0
            return
        if not self._begun:
            self._begin(state)
        if state.global_step != self.decider.step:
            self._decide(args, state, metrics or {})
        if state.global_step == self.decider.step:
            control.should_save |= self._save
            control.should_training_stop |= self._stop

    def _decide(self, args: Arguments, state: State, metrics: dict[str, float]) -> None:
        now, before = Run.of(state).take(state, metrics), self.state
        old = now.metrics.keys() - {*now.fresh, *now.trained, *self._declared(state)}
        if not old.isdisjoint(self.rule.keys):  # another set of this evaluation has the value
            return
        try:
            for key in filter(is_trained, self.rule.keys if now.trained else ()):
                read(now.metrics, key)  # training logs, but not this key
            decision = self.decider.decide(now)
        except ValueError as error:  # unless another set has the keys
            hint = "Add the callback that logs it before this one"
            self._missing = ValueError(f"{type(self).__name__}: {error}. {hint}")
            return
        self._missing = None
        join_state(state, self)[self._key] = self.decider.to_dict()
        self.act(decision, before, args, state)

    def on_save(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        self._save = False

    def on_train_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        self._training = False
        if self._missing is not None:
            raise self._missing

    def say(self, state: State, reason: str) -> None:
        """Log a decision, from rank 0."""
        if state.is_world_process_zero:
            log.warning("%s at step %d: %s", type(self).__name__, state.global_step, reason)


class RewardCheckpoint(Keeps, DecisionCallback):
    """Selects the checkpoint with the best held-out score (`ctrlreward.selection.BestRule`).

    Saves a checkpoint at each evaluation whose score is the best so far, next to checkpoints of the
    trainer's `save_strategy` (with "best", it writes no other), and sets `state.best_global_step`
    and `state.best_model_checkpoint`: `save_total_limit` keeps the selected checkpoint, and
    `load_best_model_at_end=True` loads it. `metric_for_best_model` and `state.best_metric` remain
    the trainer's. If no evaluation met the constraints, the model of the last step remains, with a
    warning. A constraint on a metric of another evaluation set needs this set in the same
    evaluation. An evaluation before the first step has no checkpoint, and is not a candidate.

    Args:
        monitor: The `BestRule`, or the key of the score, with or without `eval_`.
        mode: As in `BestRule`. Defaults to the direction that a `GenerationScorer` declares, to
            "min" for a loss, and to "max" for TRL's `reward`.
        constraints: As in `BestRule`.
        settings: Further arguments of `BestRule`.
    """

    saves = True

    def __init__(
        self,
        monitor: str | BestRule = "score/attribute_relevance",
        mode: Mode | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        **settings: Any,
    ) -> None:
        settings |= {"constraints": constraints} if constraints else {}
        if isinstance(monitor, BestRule):
            rule = given_alone(monitor, mode, settings)
        else:
            rule = BestRule(monitor, mode, **settings)
        super().__init__(rule.monitor, rule)

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Take the choice of checkpoints from the trainer, until training ends.

        No hook lies between `on_evaluate` and the trainer's own choice by `metric_for_best_model`,
        its save and its rotation, which would overwrite both names and, with the strategy "best",
        the decision to save. So `save_strategy` equals none while it trains: the trainer then
        tracks `best_metric`, and this callback saves where the strategy says.
        """
        super().on_train_begin(args, state, control)
        if args.metric_for_best_model is not None:
            args.save_strategy = equal_to_none(strategy_of(args))

    def on_step_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Let the step be saved if the trainer's strategy says so; other callbacks may refuse."""
        super().on_step_begin(args, state, control)
        self._name_selected(args, state)
        if _is_hidden(args, SaveStrategy.STEPS):
            step = state.global_step + 1
            due = state.save_steps > 0 and step % state.save_steps == 0
            control.should_save |= due or step >= state.max_steps

    def on_epoch_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        control.should_save |= _is_hidden(args, SaveStrategy.EPOCH)
        super().on_epoch_end(args, state, control)
        self._name_selected(args, state)

    def on_evaluate(
        self, args: Arguments, state: State, control: Control, metrics: Any = None, **_: Any
    ) -> None:
        """Decide, and name the selected checkpoint, which may be about to be saved."""
        super().on_evaluate(args, state, control, metrics)
        if self._training:
            self._name_selected(args, state, about_to_save=control.should_save)

    def on_save(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Name the folder of the selected checkpoint, as soon as it exists."""
        if state.is_hyper_param_search and self.path_of(state.global_step) is None:
            name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            saved = Path(args.output_dir or ".").glob(f"*/{name}")
            newest = sorted(saved, key=lambda path: path.stat().st_mtime_ns)[-1:]
            self._folders[:0] = [path.parent for path in newest]
        super().on_save(args, state, control)
        self._name_selected(args, state)

    def _name_selected(self, args: Arguments, state: State, about_to_save: bool = False) -> None:
        """Name the selected step, and its folder if it exists or is about to."""
        best = self.selected_step
        path = None if best is None else self.path_of(best)
        if about_to_save and best == state.global_step and self._folders:
            path = self._folders[0] / f"{PREFIX_CHECKPOINT_DIR}-{best}"
        state.best_global_step = None if path is None else best
        state.best_model_checkpoint = None if path is None else str(path)

    def on_train_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Return the strategy to the trainer, and log the selection."""
        args.save_strategy = strategy_of(args)
        super().on_train_end(args, state, control)
        last = ": the model has the weights of the last step" if self.selected_step is None else ""
        self.say(state, f"{self.reason}{last}")


def equal_to_none(strategy: SaveStrategy) -> SaveStrategy:
    """Return a strategy that equals no other one, but is shown, saved and copied as this one."""
    other = str.__new__(SaveStrategy, "")
    other._name_, other._value_ = strategy.name, strategy.value
    return other


def strategy_of(args: Arguments) -> SaveStrategy:
    """Return the user's `save_strategy`, also while it is hidden."""
    return SaveStrategy(SaveStrategy(args.save_strategy).value)


def _is_hidden(args: Arguments, strategy: SaveStrategy) -> bool:
    """Return whether this is the user's `save_strategy`, and hidden from the trainer."""
    return strategy_of(args) == strategy != args.save_strategy


class ParetoCheckpoint(KeepsFront, DecisionCallback):
    """Saves the checkpoints on the Pareto front of several scores, by `ParetoRule`.

    The trainer's `save_total_limit` must be None, as it would remove them. Dominated checkpoints
    stay on disk; `kept` names the checkpoints of the front. `metrics` is the `ParetoRule`, or key →
    "max" or "min", or keys whose direction a `GenerationScorer` declares. Raises as
    `RewardCheckpoint` does.
    """

    saves = True

    def __init__(self, metrics: ParetoRule | Mapping[str, str] | Sequence[str]) -> None:
        rule = pareto_rule(metrics)
        super().__init__(", ".join(rule.metrics), rule)

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        super().on_train_begin(args, state, control)
        if args.save_total_limit is not None:
            raise ValueError(
                f"save_total_limit must be None, got {args.save_total_limit}: it would remove "
                "checkpoints of the Pareto front"
            )


class RewardEarlyStopping(DecisionCallback):
    """Early stopping that counts each held-out score once (`ctrlreward.selection.StopRule`).

    A resumed run decides like an uninterrupted one. The `StopState` in `state` has the reason. The
    arguments are the `StopRule`, or its own. Raises as `RewardCheckpoint` does.
    """

    stop = True

    def __init__(
        self,
        monitor: str | StopRule = "score/attribute_relevance",
        mode: Mode | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(monitor, StopRule):
            rule = given_alone(monitor, mode, settings)
        else:
            rule = StopRule(monitor, mode, **settings)
        super().__init__(rule.monitor, rule)

    def act(self, decision: Any, before: Any, args: Arguments, state: State) -> None:
        self._stop = decision.stop
        if decision.stop:
            self.say(state, decision.reason)


class ProxyGuard(DecisionCallback):
    """Alarm on reward hacking: the optimised metric improves while a held-out metric declines.

    Decides by `ctrlreward.selection.AlarmRule`, on the scores by prompt of a `GenerationScorer`;
    without them a warning says that no alarm is possible. Logs `eval_<name>/p_value` and
    `eval_<name>/alarm` (1 or 0). When an alarm begins, a warning is logged, and the run of Weights
    & Biases gets an alert. To exclude checkpoints under alarm, add
    `RewardCheckpoint(..., constraints={"guard/alarm": (None, 0)})` after this callback.

    Args:
        proxy: The `AlarmRule`, or the key of the optimised metric: `"reward"`, as TRL logs it, or a
            loss. `held_out` and the modes are as in `AlarmRule`; `proxy_mode` defaults to "max" for
            `reward` and `rewards/…`, and to "min" for a loss.
        stop: Stop training at an alarm.
        name: Prefix of the keys. Two guards in one trainer need different names.
        settings: Further arguments of `AlarmRule`.
    """

    def __init__(
        self,
        proxy: str | AlarmRule,
        held_out: str | Sequence[str] | Mapping[str, HeldOutMode] = (),
        proxy_mode: Mode | None = None,
        held_out_mode: HeldOutMode | None = None,
        stop: bool = False,
        name: str = "guard",
        **settings: Any,
    ) -> None:
        if isinstance(proxy, AlarmRule):
            rule = given_alone(proxy, held_out, proxy_mode, held_out_mode, settings)
        else:
            rule = AlarmRule(proxy, held_out, proxy_mode, held_out_mode, **settings)
        super().__init__(name, rule)
        self.stop, self.name = stop, name
        self._warned = False  # that no alarm is possible

    def act(self, decision: Any, before: Any, args: Arguments, state: State) -> None:
        """Log the test, warn when an alarm begins, and stop training if asked to."""
        values = {f"{self.name}/alarm": float(decision.alarm)}
        tested = decision.p_value is not None
        if tested:
            values[f"{self.name}/p_value"] = decision.p_value
        row = {PREFIX + key: value for key, value in values.items()}
        Run.of(state).add(**values, **row)
        if decision.untestable and not self._warned:
            self.say(state, f"no alarm is possible: {decision.reason}")
            self._warned = True
        if not tested:
            return
        state.log_history.append({**row, "step": state.global_step})
        tracked = wandb_run(args) if state.is_world_process_zero else None
        if tracked is not None:
            shown = {f"eval/{key}": value for key, value in values.items()}
            add_to_run(tracked, self.name, shown, state.global_step)
        if decision.alarm and not before.alarm:
            self.say(state, decision.reason)
            if tracked is not None:
                title = f"{self.name}: possible reward hacking"
                tracked.alert(title, decision.reason, level="WARN")
        self._stop = decision.alarm and self.stop
