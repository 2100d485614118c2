"""`watch`: logs and alarms around the reward function of any trainer, which stays as it is."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from torch.nn import Module

from ctrlreward.adapters._conversion import completions_of
from ctrlreward.adapters.trl import _RewardFunc
from ctrlreward.files import JsonLog, without_nan
from ctrlreward.models.chats import plain_text
from ctrlreward.models.sharing import locked
from ctrlreward.ranks import rank_and_ranks
from ctrlreward.reward import AnyReward, RewardBatch
from ctrlreward.samples import Samples, shortened
from ctrlreward.selection.drift import LEVEL, DriftAlarm, DriftMonitor, Floats, Rollouts

log = logging.getLogger(__name__)

Watched = TypeVar("Watched")

SINGLE_SAMPLES = 64  # completions of a step where the trainer asks for one reward at a time
FAILED = "failed"  # in results of our adapters for verl and OpenRLHF: 1 for a failed sample
# What `inspect` reads of a function; without it, it takes an object for no coroutine function.
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")


def watch(
    reward: Watched,
    path: str | os.PathLike[str] | None = None,
    *,
    level: float = LEVEL,
    tolerances: Mapping[str, float] | None = None,
    weights: Sequence[float] | None = None,
) -> Watched:
    """Return the reward function with the same values and exceptions, logged and watched.

    Logs each step, a call or 64 calls for one completion, under `watch/`: means and standard
    deviations of the reward and its components (`watch/component/<name>`), seconds, failures, and
    the statistics of `DriftMonitor`. They go to `log_metric` where the trainer passes it (TRL),
    else to the active run of W&B, else to `watch-<process>.jsonl` in the current folder. With
    several ranks, rank 0 writes and tests its own completions. An error of the recording is logged
    once, and ends the watching.

    An alarm is a warning in the log of Python, and in `alarms` of the result: the reward has risen,
    and completions have drifted beyond a tolerance from the first ten steps in length or
    repetition, or one component carries the rise. Read its example: learning the task, such as
    longer reasoning, can do both.

    Args:
        reward: A reward function of TRL (`completions`, `prompts`, columns), verl (`compute_score`
            of a sample or a batch) or OpenRLHF (`queries`, `prompts`, `labels`), also async; a
            `Reward`; or a list of functions, whose weighted sum is the reward. Of other functions
            the first argument is the completions, a text or a list.
        path: JSONL file for the metrics, in addition to the trainer's log; an existing one is
            continued.
        level: Probability of any false alarm in the whole run.
        tolerances: Largest drift that doesn't matter, by statistic: see `DriftMonitor`.
        weights: Weight of each function of a list, as in `GRPOConfig(reward_weights=...)`.

    Raises:
        TypeError: `reward` is neither callable nor a list of callables.
        ValueError: An argument is out of range, or `weights` has another length than the list.

    Examples:
        >>> def brevity(completions, **columns):
        ...     return [-float(len(text.split())) for text in completions]
        >>> watched = watch(brevity)  # for GRPOTrainer(reward_funcs=watched)
        >>> watched.__name__, watched.alarms
        ('brevity', [])
    """
    functions = reward if isinstance(reward, list) else [reward]
    for function in functions:
        if not callable(function) or isinstance(function, Module):
            raise TypeError(
                f"reward must be a function, a Reward or a list of functions, got "
                f"{shortened(function)}. For a reward model, use RewardModel(model)."
            )
    if len(functions) != len(weights or functions):
        raise ValueError(f"weights must have {len(functions)} items, got {len(weights or ())}")
    names = [_name_of(function) for function in functions]
    recorder = _Recorder(
        names=[n if names.count(n) == 1 else f"{n}_{i + 1}" for i, n in enumerate(names)],
        weights=np.ones(len(functions)) if weights is None else np.array(weights, float),
        monitor=DriftMonitor(level=level, tolerances=tolerances),
        path=None if path is None else Path(path),
        calls=[[] for _ in functions],
    )
    watched = [_watched(each, i, recorder) for i, each in enumerate(functions)]
    return cast(Watched, watched if isinstance(reward, list) else watched[0])


def _watched(reward: Any, index: int, recorder: _Recorder) -> Any:
    if isinstance(reward, AnyReward):
        copied = copy.copy(reward)  # of the same class, whose `__call__` and `submit` use `_score`
        copied.__dict__.update(
            _score=_WatchedScore(reward, index, recorder), alarms=recorder.monitor.alarms
        )
        return copied
    call = reward if inspect.isroutine(reward) else type(reward).__call__
    coroutine = any(map(inspect.iscoroutinefunction, (reward, call, _unwrapped(reward))))
    return (_AsyncWatchedFunction if coroutine else _WatchedFunction)(reward, index, recorder)


class _WatchedFunction:
    """A reward function with a recorder: an object instead of a closure, which doesn't pickle."""

    def __init__(self, function: Callable[..., Any], index: int, recorder: _Recorder) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__ = _name_of(function)
        self.alarms = recorder.monitor.alarms
        self._index, self._recorder = index, recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs, observe = self._observer(args, kwargs)
        result = self.__wrapped__(*args, **kwargs)
        observe(result)
        return result

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__.get("__wrapped__")
        if wrapped is None or (name.startswith("__") and name not in _OF_FUNCTIONS):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(wrapped, name)

    def _observer(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], Callable[[Any], None]]:
        """Return the keywords to call the function with, and a function that records its result."""
        columns: dict[str, list[Any]] = {}
        log_extra = kwargs.get("log_extra")
        if log_extra is not None and isinstance(self.__wrapped__, _RewardFunc):

            def log_and_read(column: str, values: list[Any]) -> None:  # of a component of ours
                columns[column.removeprefix(f"{self.__name__}/")] = list(values)
                log_extra(column, values)

            kwargs = {**kwargs, "log_extra": log_and_read}
        started = time.perf_counter()

        def observe(result: Any) -> None:
            seconds = time.perf_counter() - started

            def call() -> _Call:
                names = inspect.signature(self.__wrapped__).parameters if args else ()
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                prompts, texts = _completions(given)
                rewards, components = _values(result, len(texts))
                components |= {name: _floats(values) for name, values in columns.items()}
                state = given.get("trainer_state")
                step = None if state is None else int(state.global_step) + 1
                rollouts = Rollouts(prompts, texts, rewards, components)
                return _Call(rollouts, seconds, step, given.get("log_metric"))

            self._recorder.record(self._index, call)

        return kwargs, observe


class _AsyncWatchedFunction(_WatchedFunction):
    """An asynchronous reward function with a recorder."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs, observe = self._observer(args, kwargs)
        result = await self.__wrapped__(*args, **kwargs)
        observe(result)
        return result


@dataclass(frozen=True, eq=False)
class _WatchedScore:
    """`_score` of a reward, with a recorder."""

    reward: AnyReward
    index: int
    recorder: _Recorder

    def __call__(self, samples: Samples) -> RewardBatch:
        batch = self.reward._score(samples)

        def call() -> _Call:
            texts = samples.completions
            prompts = _keys(samples.groups or samples.prompts or samples.prefixes, len(texts))
            return _Call(Rollouts(prompts, texts, *_values(batch, len(texts))), batch.seconds)

        self.recorder.record(self.index, call)
        return batch


class _Call(NamedTuple):
    """A call of a reward function; `log_metric` is TRL's."""

    rollouts: Rollouts
    seconds: float
    step: int | None = None
    log_metric: Callable[[str, float], None] | None = None

    @property
    def evaluated(self) -> bool:
        """True if TRL evaluates, by the mode of its model, as its arguments do not tell."""
        trainer = getattr(self.log_metric, "__self__", None)
        return getattr(getattr(trainer, "model", None), "training", True) is False


@dataclass
class _Recorder:
    """The log and the alarms that the functions of a list share."""

    names: list[str]
    weights: Floats
    monitor: DriftMonitor
    path: Path | None
    calls: list[list[_Call]]  # of each function, in one step
    steps: int = 0
    failed: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and statistics; a copy in another process starts a new step."""
        return {**self.__dict__, "calls": [[] for _ in self.names]}

    def record(self, index: int, read: Callable[[], _Call]) -> None:
        """Record a call of a function; an error is logged once, and ends the recording."""
        if self.failed:
            return
        try:
            call = read()
            with locked(self):
                self.calls[index].append(call)
                needed = SINGLE_SAMPLES if len(call.rollouts.texts) == 1 else 1
                if all(sum(len(c.rollouts.texts) for c in calls) >= needed for calls in self.calls):
                    step, self.calls = self._joined(), [[] for _ in self.names]
                    self._end_step(step)
        except Exception as error:  # training is worth more than its log
            self.failed = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("watch stops: %s. The reward itself is not affected.", reason)

    def _joined(self) -> _Call:
        """Return one call of all functions, with their weighted sum, as TRL computes it."""
        parts = [_concatenated(calls) for calls in self.calls]
        if len(parts) == 1:
            return parts[0]
        columns = np.array([part.rollouts.rewards for part in parts])
        sums = np.nansum(columns * self.weights[:, None], axis=0)
        rewards = np.where(np.isnan(columns).all(axis=0), np.nan, sums)
        components = dict(zip(self.names, columns, strict=True))
        rollouts = parts[-1].rollouts._replace(rewards=rewards, components=components)
        return parts[-1]._replace(rollouts=rollouts, seconds=sum(part.seconds for part in parts))

    def _end_step(self, call: _Call) -> None:
        rewards, components = call.rollouts.rewards, call.rollouts.components
        values = {"seconds": call.seconds, "fail_rate": float(np.isnan(rewards).mean())}
        # A component may have the name of a statistic, such as length.
        columns = {f"component/{name}": column for name, column in components.items()}
        for name, column in {"reward": rewards, **columns}.items():
            valid = column[np.isfinite(column)]
            values[name] = float(valid.mean()) if len(valid) else math.nan
            values[f"{name}_std"] = float(valid.std()) if len(valid) else math.nan
        alarms: list[DriftAlarm] = []
        if not call.evaluated:
            if self.path is not None and self.steps == 0:  # perhaps a log that is continued
                rows = JsonLog(self.path).read()
                self.steps = int(rows[-1].get("step", 0)) if rows else 0
            self.steps = self.steps + 1 if call.step is None else call.step
            statistics, alarms = self.monitor.update(self.steps, call.rollouts)
            values |= {**statistics, "alarms": float(len(self.monitor.alarms))}
        metrics = {f"watch/{name}": value for name, value in values.items()}
        if call.log_metric is not None:  # TRL averages over ranks
            for name, value in metrics.items():
                if math.isfinite(value):
                    call.log_metric(name, value)
        if not (rank_and_ranks()[0] or call.evaluated):
            self._write(metrics, alarms, is_logged=call.log_metric is not None)

    def _write(self, metrics: dict[str, float], alarms: list[DriftAlarm], is_logged: bool) -> None:
        for alarm in alarms:
            log.warning("watch: %s", alarm)
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is not None and not is_logged:
            run.log(metrics, commit=False)  # with the next row: its own would advance the step
        elif self.path is None and not is_logged:
            self.path = Path(f"watch-{os.getpid()}.jsonl")
        if self.path is not None:
            told = {"watch/alarm": [alarm._asdict() for alarm in alarms]} if alarms else {}
            JsonLog(self.path).append(without_nan({"step": self.steps, **metrics, **told}))


def _concatenated(calls: Sequence[_Call]) -> _Call:
    parts = [call.rollouts for call in calls]
    names = [n for n in parts[-1].components if all(n in part.components for part in parts)]
    rollouts = Rollouts(
        [prompt for part in parts for prompt in part.prompts],
        [text for part in parts for text in part.texts],
        np.concatenate([part.rewards for part in parts]),
        {name: np.concatenate([part.components[name] for part in parts]) for name in names},
    )
    return calls[-1]._replace(rollouts=rollouts, seconds=sum(call.seconds for call in calls))


# Arguments and results of reward functions


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Any) -> str:
    """Return the name by which TRL logs a function."""
    inner = _unwrapped(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _completions(given: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Return keys of the prompts, and the completions, of a trainer's arguments."""
    if "queries" in given and "prompts" in given:
        return list(given["prompts"]), completions_of(given["queries"], given["prompts"])
    if "solution_str" in given:
        key = _verl_key(given.get("ground_truth"), given.get("extra_info"))
        return [key], [str(given["solution_str"])]
    if "solution_strs" in given:
        texts = list(map(str, given["solution_strs"]))
        nothing = [None] * len(texts)
        columns = [given.get(name, nothing) for name in ("ground_truths", "extra_infos")]
        return [_verl_key(*row) for row in zip(*columns, strict=True)], texts
    first = given["completions"] if "completions" in given else next(iter(given.values()))
    if isinstance(first, str):
        first = [first]
    texts = [plain_text(completion, "assistant") for completion in first]
    return _keys(given.get("prompts"), len(texts)), texts


def _keys(prompts: Any, n: int) -> list[Any]:
    """Return a hashable key for each prompt; without prompts each is another."""
    if prompts is None:
        return [object() for _ in range(n)]
    return [prompt if isinstance(prompt, str) else repr(prompt) for prompt in prompts]


def _verl_key(truth: Any, extra: Any) -> str:
    """Return a key of a prompt, which verl does not pass: its index, else the ground truth."""
    index = extra.get("index") if isinstance(extra, Mapping) else None
    return repr(truth) if index is None else f"index {index}"


def _values(result: Any, n: int) -> tuple[Floats, dict[str, Floats]]:
    """Return the rewards and components of a function's result, for n completions."""
    if isinstance(result, RewardBatch):
        return np.where(result.failed, np.nan, result.total), dict(result.components)
    values: Any = result
    columns: Mapping[str, Any] = {}
    if isinstance(result, Mapping) and "rewards" in result:  # OpenRLHF
        values, columns = result["rewards"], result.get("extra_logs") or {}
    elif isinstance(result, Mapping):  # verl
        return _values([result], n)
    elif hasattr(result, "__len__") and len(result) and isinstance(result[0], Mapping):
        values = [row["score"] for row in result]
        columns = {k: [row.get(k) for row in result] for k in result[0] if k != "score"}
        numbers = int | float | None
        columns = {k: c for k, c in columns.items() if all(isinstance(v, numbers) for v in c)}
    rewards = _floats(values)
    if len(rewards) != n:
        raise ValueError(f"the reward has {len(rewards)} values for {n} completions")
    components = {name: _floats(column) for name, column in columns.items()}
    components = {name: column for name, column in components.items() if len(column) == n}
    failed = components.pop(FAILED, np.zeros(n))
    return np.where(failed > 0, np.nan, rewards), components


def _floats(values: Any) -> Floats:
    """Return numbers as an array, None as NaN; a number is an array of one."""
    if hasattr(values, "tolist"):  # a tensor of any device, or an array
        values = values.tolist()
    if isinstance(values, int | float):
        values = [values]
    return np.array([math.nan if value is None else float(value) for value in values])
