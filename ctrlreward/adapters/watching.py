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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from torch.nn import Module

from ctrlreward.adapters._conversion import completions_of
from ctrlreward.adapters.trl import _RewardFunc
from ctrlreward.arguments import positive
from ctrlreward.engine.sharing import locked
from ctrlreward.files import JsonLog, without_nan
from ctrlreward.ranks import rank_and_ranks
from ctrlreward.reward import AnyReward, RewardBatch
from ctrlreward.samples import Samples, shortened
from ctrlreward.selection.drift import (
    LEVEL,
    DriftAlarm,
    DriftMonitor,
    Floats,
    Rollouts,
)
from ctrlreward.text.chats import plain_text

log = logging.getLogger(__name__)

Watched = TypeVar("Watched")

# Completions of a step where the trainer asks for the reward of one at a time.
SINGLE_SAMPLES = 64
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
    samples_per_step: int | None = None,
) -> Watched:
    """Return the reward function with the same values and exceptions, logged and watched.

    Logs each step under `watch/`: means and standard deviations of the reward and its components
    (`watch/component/<name>`), seconds, failures, and the statistics of `DriftMonitor`. They go to
    `log_metric` where the trainer passes it (TRL), else to the active run of W&B or trackio, else
    to `watch-<process>.jsonl` in the current folder. With several ranks, rank 0 writes and tests
    its own completions. An error of the recording is logged once, and ends the watching.

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
        samples_per_step: Completions of a step, for trainers whose calls are parts of a step. By
            default a call is a step; calls of one completion are collected in steps of 64.

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
    if not functions:
        raise ValueError("reward is an empty list, must have at least one function")
    if weights is not None and len(weights) != len(functions):
        raise ValueError(f"weights has {len(weights)} items for {len(functions)} functions")
    names = [_name_of(function) for function in functions]
    recorder = _Recorder(
        names=[n if names.count(n) == 1 else f"{n}_{i + 1}" for i, n in enumerate(names)],
        weights=[1.0] * len(functions) if weights is None else list(map(float, weights)),
        monitor=DriftMonitor(level=level, tolerances=tolerances),
        path=None if path is None else Path(path),
        samples_per_step=positive("samples_per_step", samples_per_step),
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
    inner = _unwrapped(reward)
    coroutine = any(map(inspect.iscoroutinefunction, (reward, call, inner)))
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
                state, metric = given.get("trainer_state"), given.get("log_metric")
                step = None if state is None else int(state.global_step) + 1
                evaluated = _in_evaluation(metric)
                return _Call(prompts, texts, rewards, components, seconds, step, metric, evaluated)

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
            return _Call(prompts, texts, *_values(batch, len(texts)), batch.seconds)

        self.recorder.record(self.index, call)
        return batch


@dataclass
class _Call:
    """Completions of a call with their rewards."""

    prompts: list[Any]
    texts: list[str]
    rewards: Floats
    components: dict[str, Floats]
    seconds: float
    step: int | None = None
    log_metric: Callable[[str, float], None] | None = None
    evaluated: bool = False  # in an evaluation of the trainer, not in training


@dataclass
class _Recorder:
    """The log and the alarms that the functions of a list share."""

    names: list[str]
    weights: list[float]
    monitor: DriftMonitor
    path: Path | None
    samples_per_step: int | None
    parts: dict[int, _Call] = field(default_factory=dict)  # of one call of all functions
    calls: list[_Call] = field(default_factory=list)  # of one step
    steps: int = 0
    failed: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and statistics; a copy in another process starts a new call."""
        return {**self.__dict__, "parts": {}, "calls": []}

    def record(self, index: int, read: Callable[[], _Call]) -> None:
        """Record a call of a function; an error is logged once, and ends the recording."""
        if self.failed:
            return
        try:
            call = read()
            with locked(self):
                self._add(index, call)
        except Exception as error:  # training is worth more than its log
            self.failed = True
            log.warning(
                "watch stops: %s: %s. The reward itself is not affected.",
                type(error).__name__,
                error,
            )

    def _add(self, index: int, call: _Call) -> None:
        first = next(iter(self.parts.values()), call)
        if index in self.parts or first.texts != call.texts:  # a function was not called
            self.parts.clear()
        self.parts[index] = call
        if len(self.parts) < len(self.names):
            return
        self.calls.append(self._joined())
        self.parts.clear()
        single = len(self.calls[0].texts) == 1
        needed = self.samples_per_step or (SINGLE_SAMPLES if single else 1)
        if sum(len(each.texts) for each in self.calls) >= needed:
            calls, self.calls = self.calls, []
            self._end_step(_concatenated(calls))

    def _joined(self) -> _Call:
        """Return one call of all functions, with their weighted sum, as TRL computes it."""
        parts = [self.parts[i] for i in range(len(self.names))]
        if len(parts) == 1:
            return parts[0]
        columns = np.array([part.rewards for part in parts])
        summed = np.nansum(columns * np.array(self.weights)[:, None], axis=0)
        return replace(
            parts[-1],
            rewards=np.where(np.isnan(columns).all(axis=0), np.nan, summed),
            components=dict(zip(self.names, columns, strict=True)),
            seconds=sum(part.seconds for part in parts),
        )

    def _end_step(self, call: _Call) -> None:
        logged = {"seconds": call.seconds, "fail_rate": float(np.isnan(call.rewards).mean())}
        # A component may have the name of a statistic, such as length.
        parts = {f"component/{name}": values for name, values in call.components.items()}
        for name, values in {"reward": call.rewards, **parts}.items():
            valid = values[np.isfinite(values)]
            logged[name] = float(valid.mean()) if len(valid) else math.nan
            logged[f"{name}_std"] = float(valid.std()) if len(valid) else math.nan
        alarms: list[DriftAlarm] = []
        if not call.evaluated:
            if self.path is not None and self.steps == 0:  # perhaps a log that is continued
                rows = JsonLog(self.path).read()
                self.steps = int(rows[-1].get("step", 0)) if rows else 0
            self.steps = self.steps + 1 if call.step is None else call.step
            statistics, alarms = self.monitor.update(
                Rollouts(self.steps, call.prompts, call.texts, call.rewards, call.components)
            )
            logged |= {**statistics, "alarms": float(len(self.monitor.alarms))}
        self._write(call, {f"watch/{name}": value for name, value in logged.items()}, alarms)

    def _write(self, call: _Call, metrics: dict[str, float], alarms: list[DriftAlarm]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if call.log_metric is not None:
            for name, value in finite.items():  # TRL averages over ranks
                call.log_metric(name, value)
        if rank_and_ranks()[0] or call.evaluated:
            return
        for alarm in alarms:
            log.warning("watch: %s", alarm)
        tracked = call.log_metric is not None or _track(metrics, finite)
        if self.path is None and not tracked:
            self.path = Path(f"watch-{os.getpid()}.jsonl")
        if self.path is not None:
            found = {"watch/alarm": [alarm._asdict() for alarm in alarms]} if alarms else {}
            JsonLog(self.path).append(without_nan({"step": self.steps, **metrics, **found}))


def _track(metrics: dict[str, float], finite: dict[str, float]) -> bool:
    """Log to the active run of W&B or trackio; return whether there is one."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.log(metrics, commit=False)  # with the next row: one of its own would advance the step
    trackio: Any = sys.modules.get("trackio")
    context = getattr(trackio, "context_vars", None)
    if context is None or context.current_run.get() is None:
        return run is not None
    trackio.log(finite)
    return True


def _in_evaluation(log_metric: object) -> bool:
    """Return whether a function is called in TRL's evaluation, by the mode of the trainer's model.

    TRL passes the same arguments as in training, and itself decides by the mode.
    """
    model = getattr(getattr(log_metric, "__self__", None), "model", None)
    return getattr(model, "training", True) is False


def _concatenated(calls: Sequence[_Call]) -> _Call:
    if len(calls) == 1:
        return calls[0]
    last = calls[-1]
    names = [name for name in last.components if all(name in each.components for each in calls)]
    return replace(
        last,
        prompts=[prompt for each in calls for prompt in each.prompts],
        texts=[text for each in calls for text in each.texts],
        rewards=np.concatenate([each.rewards for each in calls]),
        components={name: np.concatenate([e.components[name] for e in calls]) for name in names},
        seconds=sum(each.seconds for each in calls),
    )


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
