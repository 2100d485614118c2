"""`watch`: logs and alarms around the reward function of any trainer, which stays as it is."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ctrlreward.adapters._conversion import completions_of
from ctrlreward.files import JsonLog, without_nan
from ctrlreward.functional.means import valid_mean
from ctrlreward.models.chats import plain_text
from ctrlreward.models.sharing import locked
from ctrlreward.ranks import rank_and_ranks
from ctrlreward.reward import AnyReward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.selection.drift import DriftMonitor

log = logging.getLogger(__name__)

Watched = TypeVar("Watched")

SINGLE_SAMPLES = 64  # completions of a step where the trainer asks for one reward at a time


def watch(
    reward: Watched,
    path: str | os.PathLike[str] | None = None,
    *,
    level: float = 0.05,
    tolerances: Mapping[str, float] | None = None,
) -> Watched:
    """Return the reward function with the same values and exceptions, logged and watched.

    Logs each step, a call or 64 calls for one completion, under `watch/`: means of the reward and
    its components (`watch/component/<name>`), failures, and the statistics of `DriftMonitor`. With
    several ranks, rank 0 writes and tests its own completions. An alarm of the monitor is a warning
    in the log of Python, and in `alarms` of the result. An error of the recording is logged once,
    and ends it.

    Args:
        reward: A `Reward`, or a reward function of TRL (`completions`, `prompts`, columns), verl
            (`compute_score`) or OpenRLHF (`queries`, `prompts`, `labels`). Of other functions the
            first argument is the completions, a text or a list. Of a coroutine function, watch the
            `Reward` in it.
        path: JSONL file for the metrics, besides TRL's log; an existing one is continued.
        level: Probability of any false alarm in the whole run.
        tolerances: Largest drift that doesn't matter, by statistic: see `DriftMonitor`.

    Examples:
        >>> def brevity(completions, **columns):
        ...     return [-float(len(text.split())) for text in completions]
        >>> watched = watch(brevity)  # for GRPOTrainer(reward_funcs=watched)
        >>> watched.__name__, watched.alarms
        ('brevity', [])
    """
    function: Any = reward[0] if isinstance(reward, list) and len(reward) == 1 else reward
    recorder = _Recorder(DriftMonitor(level, tolerances), path)
    if isinstance(reward, AnyReward):
        copied: Any = copy.copy(reward)  # of the same class, whose `__call__` uses `_score`
        score = functools.partial(_watched_score, reward, recorder)
        copied.__dict__.update(_score=score, alarms=recorder.monitor.alarms)
        return cast(Watched, copied)
    inner = _unwrapped(function)
    asynchronous = any(map(inspect.iscoroutinefunction, (inner, type(inner).__call__)))
    if asynchronous or not callable(function):
        raise TypeError("reward must be a Reward or one function, and not a coroutine function")
    return cast(Watched, _WatchedFunction(function, recorder))


def _watched_score(reward: AnyReward, recorder: _Recorder, samples: Samples) -> RewardBatch:
    batch = reward._score(samples)
    prompts = samples.groups or samples.prompts or samples.prefixes
    recorder.record(batch, {"completions": samples.completions, "prompts": prompts})
    return batch


class _WatchedFunction:
    """A reward function with a recorder: an object instead of a closure, which doesn't pickle."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], recorder: _Recorder) -> None:
        functools.update_wrapper(self, function, updated=())
        inner = _unwrapped(function)
        self.__name__ = str(getattr(inner, "__name__", type(inner).__name__))  # as TRL logs it
        self.alarms = recorder.monitor.alarms
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__wrapped__(*args, **kwargs)
        self._recorder.record(result, kwargs, self.__wrapped__, args)
        return result


@dataclass(eq=False)
class _Recorder:
    """The log and the alarms of a reward function."""

    monitor: DriftMonitor
    path: str | os.PathLike[str] | None
    table: dict[str, list[Any]] = field(default_factory=dict)  # of a step
    steps: int = 0
    failed: bool = False

    def record(
        self,
        result: Any,
        given: Mapping[str, Any],
        function: Any = None,
        args: Sequence[Any] = (),
    ) -> None:
        """Record a call of a function; an error is logged once, and ends the recording."""
        if self.failed:
            return
        try:
            names = inspect.signature(function).parameters if args else ()
            table = _table(result, {**dict(zip(names, args, strict=False)), **given})
            with locked(self):
                step = self.table or {name: [] for name in table}
                self.table = {name: rows + table[name] for name, rows in step.items()}
                least = SINGLE_SAMPLES if len(table["text"]) == 1 else 1
                if len(self.table["text"]) >= least:
                    whole, self.table = self.table, {}
                    self._end_step(whole, given.get("log_metric"), given.get("trainer_state"))
        except Exception as error:  # training is worth more than its log
            self.failed = True
            reason = f"{type(error).__name__}: {error}"
            log.warning("watch stops: %s. The reward itself is not affected.", reason)

    def _end_step(
        self,
        table: dict[str, list[Any]],
        log_metric: Callable[[str, float], None] | None,
        state: Any,
    ) -> None:
        prompts, texts = table.pop("prompt"), table.pop("text")
        columns = {name: np.array(column) for name, column in table.items()}
        values = {name: valid_mean(column) for name, column in columns.items()}
        values["fail_rate"] = float(np.isnan(columns["reward"]).mean())
        # The arguments do not tell whether TRL evaluates.
        model = getattr(getattr(log_metric, "__self__", None), "model", None)
        evaluates = getattr(model, "training", True) is False
        if not evaluates:
            if self.path and self.steps == 0 and (rows := JsonLog(Path(self.path)).read()):
                self.steps = int(rows[-1]["step"])  # a log that is continued
            self.steps = self.steps + 1 if state is None else int(state.global_step) + 1
            statistics, alarms = self.monitor.update(self.steps, prompts, texts, columns)
            values |= {**statistics, "alarms": float(len(self.monitor.alarms))}
        metrics = {f"watch/{name}": value for name, value in values.items()}
        for name, value in metrics.items():
            if log_metric is not None and math.isfinite(value):
                log_metric(name, value)  # TRL averages over ranks
        if evaluates or rank_and_ranks()[0]:
            return
        for alarm in alarms:
            log.warning("watch: %s", alarm)
        if self.path:
            told = {"watch/alarm": [alarm._asdict() for alarm in alarms]} if alarms else {}
            JsonLog(Path(self.path)).append(without_nan({"step": self.steps, **metrics, **told}))


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _table(result: Any, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return prompts, texts, rewards and components of a trainer's call and its result.

    Columns of equal length: `prompt` (a key), `text`, `reward`, `component/<name>`, NaN if failed.
    """
    prompts, components = given.get("prompts"), getattr(result, "components", {})
    if "solution_str" in given:  # verl does not pass the prompt: its index, else the truth
        texts = [given["solution_str"]]
        prompts = [(given.get("extra_info") or {}).get("index", given.get("ground_truth"))]
        record = result if isinstance(result, Mapping) else {"score": result}
        numbers = {k: v for k, v in record.items() if isinstance(v, int | float | None)}
        result, components = numbers.pop("score"), numbers
    elif "queries" in given:  # OpenRLHF
        texts = completions_of(given["queries"], given["prompts"])
        if isinstance(result, Mapping):
            result, components = result["rewards"], result.get("extra_logs") or {}
    else:
        first = given["completions"] if "completions" in given else next(iter(given.values()))
        completions = [first] if isinstance(first, str) else first
        texts = [plain_text(each, "assistant") for each in completions]
    rewards = _floats(getattr(result, "total", result))
    columns = {name: _floats(column) for name, column in components.items()}
    failed = columns.pop("failed", [0.0] * len(texts))  # of our adapters
    table = {
        "prompt": [object() for _ in texts] if prompts is None else list(map(repr, prompts)),
        "text": texts,
        "reward": [math.nan if fails else r for r, fails in zip(rewards, failed, strict=True)],
        **{f"component/{name}": column for name, column in columns.items()},
    }
    if {len(column) for column in table.values()} != {len(texts)}:
        raise ValueError(f"the reward has {len(rewards)} values for {len(texts)} completions")
    return table


def _floats(values: Any) -> list[float]:
    """Return numbers, NaN for None and infinity; a number is a list of one."""
    if hasattr(values, "tolist"):  # a tensor of any device, or an array
        values = values.tolist()
    values = [values] if isinstance(values, int | float | None) else values
    return [math.nan if v is None or not math.isfinite(v) else float(v) for v in values]
