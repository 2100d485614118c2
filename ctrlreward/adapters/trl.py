"""Adapter of a `Reward` to the reward functions of TRL's GRPO and RLOO trainers (TRL 1.16).

Prompts and completions are texts or chats; of a chat completion, the assistant's messages are
scored. A failed sample is None, which TRL leaves out of the advantages. The functions pickle, as
`AsyncGRPOTrainer` needs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ctrlreward.adapters._conversion import build_samples, check_columns
from ctrlreward.functional.advantages import zero_signal
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.models.sharing import locked
from ctrlreward.reward import AnyReward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


class Rewards(list[float | None]):
    """Rewards of n samples, None if failed, and their components, for `watch`."""

    components: Mapping[str, list[float | None]] = {}


# Keywords of TRL that do not have an item per completion.
_NOT_COLUMNS = ("log_extra", "log_metric", "trainer_state")


class RewardFuncs(list[Any]):
    """The one function of a reward: alone for `reward_funcs`, or in a list with others.

    Examples:
        >>> functions = as_reward_funcs(lambda texts: [float(len(text)) for text in texts])
        >>> functions(["Say"], [" hi"]) == functions[0](["Say"], [" hi"])
        True
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self[0](*args, **kwargs)

    @property
    def __name__(self) -> str:
        """The name in TRL's log."""
        return str(self[0].name)


def as_reward_funcs(
    reward: RewardLike, columns: Mapping[str, str] | None = None, name: str = "reward"
) -> RewardFuncs:
    """Return one function that returns the reward's total; it needs no `reward_weights`.

    TRL logs `rewards/<name>/mean` and `/std` of the total, and as means over the samples of all
    ranks `<name>/fail_rate` and `<name>/<component>`, without failed samples. `<name>/zero_signal`
    is the share of groups whose totals are equal, from which nothing is learned.

    Functions of the reward get TRL's `completion_ids` and `environments`, and the columns of the
    dataset, by their names (`FunctionScorer`).

    Args:
        reward: The reward, or the arguments of `Reward`. Each rank scores its own samples, so
            `Distinct` and `given_group` see only the part of a group that is on its rank.
        columns: Column of `Samples` → column of the dataset, `{"labels": "sentiment"}`. With
            `{"prefixes": "prompt"}` each text is prompt + completion, else the completion alone. A
            sample without a value in such a column is of another task: its reward is None.
        name: Name of the function in TRL's log, different for each reward.

    Raises:
        TypeError: `reward` is neither a `Reward` nor components.
        ValueError: A column that `Samples` doesn't have, or that the reward needs and `columns`
            lacks. When called: a column that the dataset doesn't have.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
        >>> (function,) = as_reward_funcs(similarity, {"sources": "original"}, name="similarity")
        >>> function(["Reword."] * 2, ["broth", ""], original=["soup", "soup"])  # as TRL calls it
        [0.6, None]
    """
    reward = as_reward(reward)
    return RewardFuncs([_Total(reward, check_columns(columns, reward), name)])


def as_async_reward_funcs(
    reward: RewardLike, columns: Mapping[str, str] | None = None, name: str = "reward"
) -> list[Callable[..., Any]]:
    """Return the function of `as_reward_funcs` as a coroutine, in a list; TRL runs several at once.

    Use it with several rewards on different devices: `[*as_async_reward_funcs(a), *...]`.
    `AsyncGRPOTrainer` logs the total alone.

    Examples:
        >>> from ctrlreward import Perplexity
        >>> (function,) = as_async_reward_funcs(Perplexity()["log_likelihood"], name="fluency")
        >>> function.__name__
        'fluency'
    """
    reward = as_reward(reward)
    return [_AsyncTotal(reward, check_columns(columns, reward), name)]


def as_component_funcs(
    reward: RewardLike, columns: Mapping[str, str] | None = None
) -> tuple[list[Callable[..., Rewards]], list[float]]:
    """Return one function per component, for TRL to combine, and their weights.

    Arguments as `as_reward_funcs`. Use this for `multi_objective_aggregation="normalize_then_sum"`.
    The weights are for `GRPOConfig(reward_weights=...)`: without them, TRL would reward the wrong
    direction of a score that is better when lower. The functions score a batch once between them. A
    sample that fails in one component is None in all, because TRL would sum the others; TRL logs
    `<component>/fail_rate` and `/zero_signal`.

    Raises:
        ValueError: The reward is not a weighted sum; also as in `as_reward_funcs`.

    Examples:
        >>> from ctrlreward import CTRLEval, Perplexity
        >>> scores = {"coherence": CTRLEval()["coherence"], "pp": Perplexity()["perplexity"]}
        >>> functions, weights = as_component_funcs(scores)
        >>> [function.__name__ for function in functions], weights
        (['coherence', 'pp'], [1.0, -1.0])
    """
    reward = as_reward(reward)
    if reward.weights is None:
        raise ValueError(
            "the reward is not a weighted sum, as TRL combines components: use as_reward_funcs"
        )
    cached, mapping = _CachedReward(reward), check_columns(columns, reward)
    functions = [_Component(cached, mapping, name) for name in reward.weights]
    return [*functions], list(reward.weights.values())


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, like functions
class _RewardFunc:
    """Base class of reward functions: objects instead of closures, which don't pickle."""

    reward: Any  # `AnyReward` or `_CachedReward`
    columns: Mapping[str, str]
    name: str

    @property
    def __name__(self) -> str:
        """The name in TRL's log."""
        return self.name

    def samples(
        self, prompts: Sequence[Any], completions: Sequence[Any], given: Mapping[str, Any]
    ) -> tuple[list[int], Samples]:
        """Convert a batch of TRL; return the rows that are scored, and their samples.

        A row without a value in a mapped column, None or NaN, is of another task.
        """
        table = {name: column for name, column in given.items() if name not in _NOT_COLUMNS}
        absent = {
            i
            for source in self.columns.values()
            for i, value in enumerate(table.get(source, ()))
            if value is None or (isinstance(value, float) and math.isnan(value))
        }
        rows = [i for i in range(len(completions)) if i not in absent]
        extra = {name: [column[i] for i in rows] for name, column in table.items()}
        samples = build_samples(
            [plain_text(completions[i], "assistant") for i in rows],
            [plain_text(prompts[i]) for i in rows],
            extra,
            self.columns,
        )
        asked = [as_prompt(prompts[i]) for i in rows]
        return rows, samples.replace(prompts=asked, extra=extra)

    def logged(
        self,
        batch: RewardBatch,
        rows: Sequence[int],
        samples: Samples,
        n: int,
        given: Mapping[str, Any],
    ) -> Rewards:
        """Return the total of n samples, of which `rows` were scored; log it, and its components.

        Metrics of each sample, since TRL averages over the samples of all ranks; components as
        columns of TRL's table of completions, which must be the same in all batches.
        """
        rewards = _spread(batch.total, rows, n)
        rewards.components = {k: _spread(v, rows, n) for k, v in batch.components.items()}
        if (log_extra := given.get("log_extra")) is not None:
            for component, column in rewards.components.items():
                log_extra(f"{self.name}/{component}", column)
        valid = {
            name: values[~batch.failed & ~np.isnan(values)]
            for name, values in batch.components.items()
        }
        signal = _zero_signal(batch.total, samples)
        self.log({**valid, "fail_rate": batch.incomplete, "zero_signal": signal}, given)
        return rewards

    def log(self, columns: Mapping[str, npt.NDArray[Any]], given: Mapping[str, Any]) -> None:
        """Log each value of each column."""
        if (log_metric := given.get("log_metric")) is not None:
            for name, values in columns.items():
                for value in values.tolist():
                    log_metric(f"{self.name}/{name}", float(value))


class _Total(_RewardFunc):
    """Total of a reward."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any) -> Rewards:
        rows, samples = self.samples(prompts, completions, given)
        return self.logged(self.reward(samples), rows, samples, len(completions), given)


class _AsyncTotal(_RewardFunc):
    """Total of a reward that is scored on its background thread."""

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any
    ) -> Rewards:
        rows, samples = self.samples(prompts, completions, given)
        batch = await asyncio.wrap_future(self.reward.submit(samples))
        return self.logged(batch, rows, samples, len(completions), given)


class _Component(_RewardFunc):
    """One component of a reward that several functions share."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any) -> Rewards:
        rows, samples = self.samples(prompts, completions, given)
        batch = self.reward(samples)
        values = batch.components[self.name]
        signal = _zero_signal(np.where(batch.failed, np.nan, values), samples)
        self.log({"fail_rate": np.isnan(values), "zero_signal": signal}, given)
        return _spread(np.where(batch.failed, np.nan, values), rows, len(completions))


class _CachedReward:
    """A reward that keeps the last batch, for functions of several threads that score the same."""

    def __init__(self, reward: AnyReward) -> None:
        self.reward = reward
        self.last: tuple[Samples, RewardBatch] | None = None

    def __call__(self, samples: Samples) -> RewardBatch:
        with locked(self):
            if self.last is None or self.last[0] != samples:
                self.last = (samples, self.reward(samples))
            return self.last[1]

    def __getstate__(self) -> dict[str, Any]:
        return {"reward": self.reward, "last": None}


def _zero_signal(values: Scores, samples: Samples) -> npt.NDArray[np.bool_]:
    """Return for each group whether its valid values are equal."""
    if not len(samples):
        return np.array([], dtype=bool)
    _, first, groups = np.unique(samples.groups or (), return_index=True, return_inverse=True)
    equal = zero_signal(torch.from_numpy(values), torch.from_numpy(groups))
    return equal.numpy()[first]


def _spread(values: Scores, rows: Sequence[int], n: int) -> Rewards:
    """Return n values, None for NaN and for the rows that were not scored."""
    spread = Rewards([None] * n)
    for row, value in zip(rows, values.tolist(), strict=True):
        spread[row] = None if math.isnan(value) else value
    return spread
