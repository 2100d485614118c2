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
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from torch.nn import Module

from ctrlreward.adapters._conversion import completions_of
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
            `Reward`; or a list of functions of TRL, whose weighted sum is the reward. Of other
            functions the first argument is the completions, a text or a list.
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
        rows=[[] for _ in functions],
    )
    watched = [_watched(each, i, recorder) for i, each in enumerate(functions)]
    return cast(Watched, watched if isinstance(reward, list) else watched[0])


def _watched(reward: Any, index: int, recorder: _Recorder) -> Any:
    if isinstance(reward, AnyReward):
        copied = copy.copy(reward)  # of the same class, whose `__call__` and `submit` use `_score`
        score = functools.partial(_watched_score, reward, recorder)
        copied.__dict__.update(_score=score, alarms=recorder.monitor.alarms)
        return copied
    call = reward if inspect.isroutine(reward) else type(reward).__call__
    coroutine = any(map(inspect.iscoroutinefunction, (reward, call, _unwrapped(reward))))
    return (_AsyncWatchedFunction if coroutine else _WatchedFunction)(reward, index, recorder)


def _watched_score(reward: AnyReward, recorder: _Recorder, samples: Samples) -> RewardBatch:
    batch = reward._score(samples)
    prompts = samples.groups or samples.prompts or samples.prefixes
    given = {"completions": samples.completions, "prompts": prompts}
    recorder.record(0, lambda: _read(batch, given, {}), batch.seconds, {})
    return batch


class _WatchedFunction:
    """A reward function with a recorder: an object instead of a closure, which doesn't pickle."""

    def __init__(self, function: Callable[..., Any], index: int, recorder: _Recorder) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__ = _name_of(function)
        self.alarms = recorder.monitor.alarms
        self._index, self._recorder = index, recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started, logged = time.perf_counter(), dict[str, Any]()
        result = self.__wrapped__(*args, **self._noting(kwargs, logged))
        self._record(result, args, kwargs, logged, time.perf_counter() - started)
        return result

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__.get("__wrapped__")
        if wrapped is None or (name.startswith("__") and name not in _OF_FUNCTIONS):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(wrapped, name)

    def _noting(self, kwargs: dict[str, Any], logged: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords, with a `log_extra` of TRL that also notes components of ours."""
        log_extra = kwargs.get("log_extra")
        if log_extra is None:
            return kwargs

        def log_and_note(column: str, values: list[Any]) -> None:
            if column.startswith(f"{self.__name__}/"):
                logged[column.removeprefix(f"{self.__name__}/")] = list(values)
            log_extra(column, values)

        return {**kwargs, "log_extra": log_and_note}

    def _record(
        self,
        result: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        logged: Mapping[str, Any],
        seconds: float,
    ) -> None:
        def read() -> list[_Row]:
            names = inspect.signature(self.__wrapped__).parameters if args else ()
            return _read(result, {**dict(zip(names, args, strict=False)), **kwargs}, logged)

        self._recorder.record(self._index, read, seconds, kwargs)


class _AsyncWatchedFunction(_WatchedFunction):
    """An asynchronous reward function with a recorder."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started, logged = time.perf_counter(), dict[str, Any]()
        result = await self.__wrapped__(*args, **self._noting(kwargs, logged))
        self._record(result, args, kwargs, logged, time.perf_counter() - started)
        return result


class _Row(NamedTuple):
    """A completion, with a key of its prompt, its reward and the components."""

    prompt: Hashable
    text: str
    reward: float
    components: Mapping[str, float]


@dataclass
class _Recorder:
    """The log and the alarms that the functions of a list share."""

    names: list[str]
    weights: Floats
    monitor: DriftMonitor
    path: Path | None
    rows: list[list[_Row]]  # of a step, by function
    seconds: float = 0.0
    steps: int = 0
    failed: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and statistics; a copy in another process starts a new step."""
        return {**self.__dict__, "rows": [[] for _ in self.names], "seconds": 0.0}

    def record(
        self, index: int, read: Callable[[], list[_Row]], seconds: float, given: Mapping[str, Any]
    ) -> None:
        """Record a call of a function; an error is logged once, and ends the recording."""
        if self.failed:
            return
        try:
            rows = read()
            with locked(self):
                self.rows[index] += rows
                self.seconds += seconds
                least = SINGLE_SAMPLES if len(rows) == 1 else 1
                if all(len(each) >= least for each in self.rows):
                    self._end_step(given.get("log_metric"), given.get("trainer_state"))
                    self.rows, self.seconds = [[] for _ in self.names], 0.0
        except Exception as error:  # training is worth more than its log
            self.failed = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("watch stops: %s. The reward itself is not affected.", reason)

    def _end_step(self, log_metric: Callable[[str, float], None] | None, state: Any) -> None:
        rows = self.rows[-1]
        totals = np.array([[row.reward for row in each] for each in self.rows])
        names = set.intersection(*(set(row.components) for row in rows))
        columns = {name: np.array([row.components[name] for row in rows]) for name in names}
        if len(totals) > 1:
            columns = dict(zip(self.names, totals, strict=True))
        # The sum of TRL.
        rewards = np.nansum(totals * self.weights[:, None], axis=0)
        rewards[np.isnan(totals).all(axis=0)] = np.nan
        values = {"seconds": self.seconds, "fail_rate": float(np.isnan(rewards).mean())}
        # A component may have the name of a statistic, such as length.
        shown = {f"component/{name}": column for name, column in columns.items()}
        for name, column in {"reward": rewards, **shown}.items():
            valid = column[np.isfinite(column)]
            values[name] = float(valid.mean()) if len(valid) else math.nan
            values[f"{name}_std"] = float(valid.std()) if len(valid) else math.nan
        # The arguments do not tell whether TRL evaluates.
        trainer = getattr(log_metric, "__self__", None)
        evaluates = getattr(getattr(trainer, "model", None), "training", True) is False
        alarms: list[DriftAlarm] = []
        if not evaluates:
            if self.path is not None and self.steps == 0:  # perhaps a log that is continued
                earlier = JsonLog(self.path).read()
                self.steps = int(earlier[-1].get("step", 0)) if earlier else 0
            self.steps = self.steps + 1 if state is None else int(state.global_step) + 1
            prompts, texts = [row.prompt for row in rows], [row.text for row in rows]
            rollouts = Rollouts(prompts, texts, rewards, columns)
            statistics, alarms = self.monitor.update(self.steps, rollouts)
            values |= {**statistics, "alarms": float(len(self.monitor.alarms))}
        metrics = {f"watch/{name}": value for name, value in values.items()}
        for name, value in metrics.items():
            if log_metric is not None and math.isfinite(value):
                log_metric(name, value)  # TRL averages over ranks
        if evaluates or rank_and_ranks()[0]:
            return
        for alarm in alarms:
            log.warning("watch: %s", alarm)
        run = getattr(sys.modules.get("wandb"), "run", None)
        if log_metric is None and run is not None:
            run.log(metrics, commit=False)  # with the next row: its own would advance the step
        elif log_metric is None and self.path is None:
            self.path = Path(f"watch-{os.getpid()}.jsonl")
        if self.path is not None:
            told = {"watch/alarm": [alarm._asdict() for alarm in alarms]} if alarms else {}
            JsonLog(self.path).append(without_nan({"step": self.steps, **metrics, **told}))


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Any) -> str:
    """Return the name by which TRL logs a function."""
    inner = _unwrapped(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _read(result: Any, given: Mapping[str, Any], logged: Mapping[str, Any]) -> list[_Row]:
    """Return the completions of a trainer's arguments, with the rewards of a function's result."""
    prompts: Sequence[Hashable]
    if "solution_str" in given:  # verl, one sample
        given = {f"{name}s": [value] for name, value in given.items()}
    if "solution_strs" in given:  # verl does not pass the prompt: its index, else the truth
        texts = list(map(str, given["solution_strs"]))
        extras = given.get("extra_infos") or [None] * len(texts)
        truths = given.get("ground_truths") or [None] * len(texts)
        pairs = zip(extras, truths, strict=True)
        prompts = [repr((extra or {}).get("index", truth)) for extra, truth in pairs]
    elif "queries" in given:  # OpenRLHF
        prompts, texts = given["prompts"], completions_of(given["queries"], given["prompts"])
    else:
        first = given["completions"] if "completions" in given else next(iter(given.values()))
        completions = [first] if isinstance(first, str) else first
        texts = [plain_text(each, "assistant") for each in completions]
        known = given.get("prompts")
        # Without prompts each is another.
        prompts = [object() for _ in texts] if known is None else list(map(repr, known))
    columns = dict(logged)
    if isinstance(result, RewardBatch):
        result, columns = result.total, result.components
    elif isinstance(result, Mapping) and "rewards" in result:  # OpenRLHF
        result, columns = result["rewards"], result.get("extra_logs") or {}
    elif isinstance(result, Mapping) or (len(result) and isinstance(result[0], Mapping)):
        records = [result] if isinstance(result, Mapping) else result  # verl
        result = [record["score"] for record in records]
        columns = {k: [record.get(k) for record in records] for k in records[0] if k != "score"}
        numbers = int | float | None
        columns = {k: c for k, c in columns.items() if all(isinstance(v, numbers) for v in c)}
    rewards = _floats(result)
    if len(rewards) != len(texts):
        raise ValueError(f"the reward has {len(rewards)} values for {len(texts)} completions")
    components = {name: _floats(column) for name, column in columns.items()}
    failed = components.pop("failed", None)  # of our adapters
    return [
        _Row(
            prompts[i],
            texts[i],
            math.nan if failed is not None and failed[i] else rewards[i],
            {name: column[i] for name, column in components.items()},
        )
        for i in range(len(texts))
    ]


def _floats(values: Any) -> list[float]:
    """Return numbers, None as NaN; a number is a list of one."""
    if hasattr(values, "tolist"):  # a tensor of any device, or an array
        values = values.tolist()
    values = [values] if isinstance(values, int | float) else values
    return [math.nan if value is None else float(value) for value in values]
