"""Adapter of a `Reward` to the reward functions of TRL's GRPO and RLOO trainers (TRL 1.16).

```python
trainer = GRPOTrainer(
    model, reward_funcs=as_reward_funcs(reward, {"labels": "sentiment", "prefixes": "prompt"}), ...
)
```

Prompts and completions are texts or chats; of a chat completion, the assistant's messages are
scored. A failed sample is None, which TRL leaves out of the advantages. `trl` itself is not
imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ctrlreward.adapters.conversion import build_samples, check_columns, plain_text
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

Rewards = list[float | None]
RewardFunc = Callable[..., Rewards]
AsyncRewardFunc = Callable[..., Awaitable[Rewards]]
LogMetric = Callable[[str, float], None]

# Keywords that TRL passes besides the dataset's columns.
_NOT_COLUMNS = ("completion_ids", "environments", "log_extra", "log_metric", "trainer_state")


class ComponentFuncs(NamedTuple):
    """Reward functions of single components, and the weights that combine them.

    Attributes:
        functions: One function per component, with the component's name, for `reward_funcs`.
        weights: For `GRPOConfig(reward_weights=...)`. Without them TRL weights all functions by 1,
            which rewards the wrong direction of a score that is better when lower.
    """

    functions: list[RewardFunc]
    weights: list[float]


def as_reward_funcs(
    reward: Reward, columns: Mapping[str, str] | None = None, name: str = "reward"
) -> list[RewardFunc]:
    """Return one function that gives the reward's total; it needs no `reward_weights`.

    TRL logs `rewards/<name>/mean` and `/std` of the total, and `<name>/<component>` and
    `<name>/fail_rate`. These are means over the samples of all ranks; components leave out failed
    samples.

    Args:
        reward: The reward. Each rank scores its own samples, so a score over whole groups
            (`Distinct`) sees only the part of a group that is on its rank.
        columns: Column of `Samples` → column of the dataset, `{"labels": "sentiment"}`. With
            `{"prefixes": "prompt"}` each text is prompt + completion; without `prefixes` it is the
            completion alone.
        name: Name of the function in TRL's log; give each reward its own.

    Raises:
        ValueError: A column that `Samples` doesn't have. When called: a column that the dataset
            doesn't have.
    """
    mapping = check_columns(columns)

    def reward_func(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: LogMetric | None = None,
        **dataset: Any,
    ) -> Rewards:
        batch = reward(_samples(prompts, completions, dataset, mapping))
        _log_components(batch, name, log_metric)
        return _failed_as_none(batch.total, batch)

    reward_func.__name__ = name
    return [reward_func]


def as_async_reward_funcs(
    reward: Reward, columns: Mapping[str, str] | None = None, name: str = "reward"
) -> list[AsyncRewardFunc]:
    """Return the function of `as_reward_funcs` as a coroutine, which TRL runs concurrently.

    Worth it with several rewards, each on a device of its own.
    """
    mapping = check_columns(columns)

    async def reward_func(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: LogMetric | None = None,
        **dataset: Any,
    ) -> Rewards:
        future = reward.submit(_samples(prompts, completions, dataset, mapping))
        batch = await asyncio.wrap_future(future)
        _log_components(batch, name, log_metric)
        return _failed_as_none(batch.total, batch)

    reward_func.__name__ = name
    return [reward_func]


def as_component_funcs(reward: Reward, columns: Mapping[str, str] | None = None) -> ComponentFuncs:
    """Return one function per component, for TRL to combine.

    Use this for `multi_objective_aggregation="normalize_then_sum"`; for a plain weighted sum,
    `as_reward_funcs` is enough. The functions score a batch once between them. A sample that fails
    in one component is None in all, because TRL would sum the others.

    Args:
        reward: A reward with `aggregate="weighted"`.
        columns: As in `as_reward_funcs`.

    Raises:
        ValueError: The reward is not a weighted sum; also as in `as_reward_funcs`.
    """
    if reward.weights is None:
        raise ValueError(
            "the reward is not a weighted sum, and TRL can combine components in no other way: "
            "use as_reward_funcs, which gives the total"
        )
    mapping = check_columns(columns)
    cached_reward = _CachedReward(reward)

    def build(component: str) -> RewardFunc:
        def component_func(
            prompts: Sequence[Any], completions: Sequence[Any], **dataset: Any
        ) -> Rewards:
            batch = cached_reward(_samples(prompts, completions, dataset, mapping))
            return _failed_as_none(batch.components[component], batch)

        component_func.__name__ = component
        return component_func

    return ComponentFuncs([build(name) for name in reward.weights], list(reward.weights.values()))


class _CachedReward:
    """A reward that keeps the last batch, for several functions that score the same samples."""

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
    dataset: Mapping[str, Any],
    columns: Mapping[str, str],
) -> Samples:
    table = {name: column for name, column in dataset.items() if name not in _NOT_COLUMNS}
    return build_samples(
        [plain_text(completion, "assistant") for completion in completions],
        [plain_text(prompt) for prompt in prompts],
        table,
        columns,
    )


def _failed_as_none(values: Scores, batch: RewardBatch) -> Rewards:
    return [
        None if failed else float(value) for value, failed in zip(values, batch.failed, strict=True)
    ]


def _log_components(batch: RewardBatch, name: str, log_metric: LogMetric | None) -> None:
    """Log each sample by itself: TRL averages over all logged values of all ranks."""
    if log_metric is None:
        return
    for failed in batch.failed:
        log_metric(f"{name}/fail_rate", float(failed))
    for component, values in batch.components.items():
        for value in values[~batch.failed]:
            log_metric(f"{name}/{component}", float(value))
