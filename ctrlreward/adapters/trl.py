"""A `Reward` as the reward functions of TRL's `GRPOTrainer` and `RLOOTrainer` (TRL 1.16).

```python
trainer = GRPOTrainer(
    model, reward_funcs=as_reward_funcs(reward, {"labels": "sentiment", "prefixes": "prompt"}), ...
)
```

Prompts and completions are texts or chats; of a chat completion the assistant's messages are
scored. TRL takes None for "no reward": a sample that failed has no advantage there either. `trl`
itself is not imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ctrlreward.adapters.reading import check_columns, samples_of, text_of
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

Rewards = list[float | None]
RewardFunc = Callable[..., Rewards]
AsyncRewardFunc = Callable[..., Awaitable[Rewards]]
LogMetric = Callable[[str, float], None]

# What TRL passes beside the dataset's columns.
_NOT_COLUMNS = ("completion_ids", "environments", "log_extra", "trainer_state")


class ComponentFuncs(NamedTuple):
    """Reward functions of single components, and what makes a reward of them.

    Attributes:
        functions: One a component, named as it is, for `reward_funcs`.
        weights: For `GRPOConfig(reward_weights=...)`. Without them TRL takes 1 for all, which
            rewards the worse direction of a score that is better when lower.
    """

    functions: list[RewardFunc]
    weights: list[float]


def as_reward_funcs(
    reward: Reward, columns: Mapping[str, str] | None = None, name: str = "reward"
) -> list[RewardFunc]:
    """One function, of the reward's total; TRL needs no weights to go with it.

    TRL's log gets `rewards/<name>/mean` and `/std`, of the total, and `<name>/<component>` and
    `<name>/fail_rate`: means over all ranks' samples, components over those that did not fail.

    Args:
        reward: On several ranks each scores its own samples; a score of whole groups
            (`Distinct`) then sees those of a group that are on its rank.
        columns: Column of `Samples` ← column of the dataset, `{"labels": "sentiment"}`. With
            `{"prefixes": "prompt"}` texts begin with their prompts; where no prefixes are mapped
            the text is the completion alone.
        name: What TRL logs the function as; give each reward its own.

    Raises:
        ValueError: Columns that `Samples` doesn't have. When called: dataset columns that are not
            there.
    """
    mapped = check_columns(columns)

    def reward_func(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: LogMetric | None = None,
        **given: Any,
    ) -> Rewards:
        batch = reward(_samples(prompts, completions, given, mapped))
        _log(batch, name, log_metric)
        return _without_failed(batch.total, batch)

    reward_func.__name__ = name
    return [reward_func]


def as_async_reward_funcs(
    reward: Reward, columns: Mapping[str, str] | None = None, name: str = "reward"
) -> list[AsyncRewardFunc]:
    """As `as_reward_funcs`, as a coroutine: TRL lets such functions run side by side.

    Worth it where there are several rewards, each on a device of its own.
    """
    mapped = check_columns(columns)

    async def reward_func(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: LogMetric | None = None,
        **given: Any,
    ) -> Rewards:
        started = reward.submit(_samples(prompts, completions, given, mapped))
        batch = await asyncio.wrap_future(started)
        _log(batch, name, log_metric)
        return _without_failed(batch.total, batch)

    reward_func.__name__ = name
    return [reward_func]


def as_component_funcs(reward: Reward, columns: Mapping[str, str] | None = None) -> ComponentFuncs:
    """One function a component, where TRL is to combine them itself.

    That is for `multi_objective_aggregation="normalize_then_sum"`; a plain sum is had from
    `as_reward_funcs`. The functions share one scoring of a batch. A sample that fails in one
    component is None in all: TRL would sum up the others.

    Args:
        reward: A weighted one.
        columns: As `as_reward_funcs` takes them.

    Raises:
        ValueError: The reward is no weighted sum; or as `as_reward_funcs` raises.
    """
    if reward.weights is None:
        raise ValueError(
            "the reward is no weighted sum of its components, which is all that TRL can make of "
            "them: take as_reward_funcs, which gives the total"
        )
    mapped = check_columns(columns)
    judge = _Once(reward)

    def function(component: str) -> RewardFunc:
        def component_func(
            prompts: Sequence[Any], completions: Sequence[Any], **given: Any
        ) -> Rewards:
            given = {name: value for name, value in given.items() if name != "log_metric"}
            batch = judge(_samples(prompts, completions, given, mapped))
            return _without_failed(batch.components[component], batch)

        component_func.__name__ = component
        return component_func

    return ComponentFuncs([function(n) for n in reward.weights], list(reward.weights.values()))


class _Once:
    """Scores a batch once, however many functions ask for it in turn."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.last: tuple[Samples, RewardBatch] | None = None

    def __call__(self, samples: Samples) -> RewardBatch:
        if self.last is None or self.last[0] != samples:
            self.last = (samples, self.reward(samples))
        return self.last[1]


def _samples(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    given: Mapping[str, Any],
    columns: Mapping[str, str],
) -> Samples:
    table = {name: column for name, column in given.items() if name not in _NOT_COLUMNS}
    return samples_of(
        [text_of(completion, "assistant") for completion in completions],
        [text_of(prompt) for prompt in prompts],
        table,
        columns,
    )


def _without_failed(values: Scores, batch: RewardBatch) -> Rewards:
    return [
        None if failed else float(value) for value, failed in zip(values, batch.failed, strict=True)
    ]


def _log(batch: RewardBatch, name: str, log_metric: LogMetric | None) -> None:
    """Value by value, since TRL weighs every value of every rank alike."""
    if log_metric is None:
        return
    for failed in batch.failed:
        log_metric(f"{name}/fail_rate", float(failed))
    for component, values in batch.components.items():
        for value in values[~batch.failed]:
            log_metric(f"{name}/{component}", float(value))
