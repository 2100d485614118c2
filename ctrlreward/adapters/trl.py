"""Adapter of a `Reward` to the reward functions of TRL's GRPO and RLOO trainers (TRL 1.16).

Prompts and completions are texts or chats; of a chat completion, the assistant's messages are
scored. A failed sample is None, which TRL leaves out of the advantages. The functions pickle, as
`AsyncGRPOTrainer` needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ctrlreward.adapters._conversion import build_samples, check_columns
from ctrlreward.functional.advantages import zero_signal
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.reward import AnyReward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


class Rewards(list[float | None]):
    """Rewards of n samples, None if failed, and their components, for `watch`."""

    components: Mapping[str, list[float | None]] = {}


# Keywords of TRL that do not have an item per completion.
_NOT_COLUMNS = ("log_extra", "log_metric", "trainer_state")


class RewardFuncs(list[Any]):
    """The one function of a reward: alone for `reward_funcs`, or in a list with others."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self[0](*args, **kwargs)

    @property
    def __name__(self) -> str:
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
            `Distinct` sees only the part of a group that is on its rank.
        columns: Column of `Samples` → column of the dataset, `{"labels": "sentiment"}`. With
            `{"prefixes": "prompt"}` each text is prompt + completion, else the completion alone. A
            sample without a value in such a column is of another task: its reward is None.
        name: Name of the function in TRL's log, different for each reward.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
        >>> (function,) = as_reward_funcs(similarity, {"sources": "original"}, name="similarity")
        >>> function(["Reword."] * 2, ["broth", ""], original=["soup", "soup"])  # as TRL calls it
        [0.6, None]
    """
    reward = as_reward(reward)
    return RewardFuncs([RewardFunc(reward, check_columns(columns, reward), name)])


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, like functions
class RewardFunc:
    """The function of a reward: an object instead of a closure, which doesn't pickle."""

    reward: AnyReward
    columns: Mapping[str, str]
    name: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **given: Any) -> Rewards:
        rows, samples = self.samples(prompts, completions, given)
        return self.logged(self.reward(samples), rows, samples, len(completions), given)

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
        if (log_metric := given.get("log_metric")) is not None:
            told = {**valid, "fail_rate": batch.incomplete, "zero_signal": signal}
            for name, values in told.items():
                for value in values.tolist():
                    log_metric(f"{self.name}/{name}", float(value))
        return rewards


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
