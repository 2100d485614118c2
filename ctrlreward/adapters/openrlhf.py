"""Adapter of a `Reward` to OpenRLHF's reward function (OpenRLHF 0.11).

`--reward.remote_url rewards.py` names a Python file that defines `reward_func`. OpenRLHF logs its
exceptions and continues with a reward of None, which ends the run later; so call the function by
hand first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ctrlreward.adapters._conversion import (
    build_samples,
    check_columns,
    check_failed_score,
    check_pointwise,
    completions_of,
    without,
)
from ctrlreward.reward import AnyReward, RewardLike, as_reward


def as_reward_func(
    reward: RewardLike,
    special_tokens: str | Sequence[str],
    failed_score: float,
    columns: Mapping[str, str] | None = None,
) -> Callable[..., dict[str, Any]]:
    """Return a function of n queries (prompt + completion), n prompts and n labels.

    The function returns `rewards` and `scores`, which are both the total, and `extra_logs` with
    each component and `failed` (1.0 or 0.0): float32 tensors of shape (n,). The components of a
    failed sample are NaN.

    Args:
        reward: Reward whose scores depend on one sample alone, or the arguments of `Reward`.
        special_tokens: Tokens to remove from completions, since OpenRLHF decodes with special
            tokens: the tokenizer's `all_special_tokens`. A string is one token.
        failed_score: Score of a failed sample, a finite number: NaN would spread to others.
        columns: Column of `Samples` → `"label"` or `"prompt"`. Texts are prefix + completion if
            `prefixes` is mapped, else the completion alone.

    Raises:
        TypeError: `reward` is neither a `Reward` nor components.
        ValueError: An unknown column, a score that is not finite, a component named `failed`, or
            a component that depends on several samples. When called: a query that does not start
            with its prompt.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
        >>> reward_func = as_reward_func(similarity, ["<eos>"], -1.0, {"sources": "label"})
        >>> reward_func(["Reword: broth<eos>"], ["Reword: "], ["soup"])["rewards"]
        tensor([0.6000])
    """
    reward = as_reward(reward)
    check_pointwise(reward, "OpenRLHF's reward_func")
    check_failed_score(reward, failed_score, ["failed"])
    tokens = (special_tokens,) if isinstance(special_tokens, str) else tuple(special_tokens)
    return _RewardFunc(reward, tokens, failed_score, check_columns(columns, reward))


@dataclass(frozen=True, eq=False)
class _RewardFunc:
    """Reward function: an object instead of a closure, which doesn't pickle."""

    reward: AnyReward
    special_tokens: tuple[str, ...]
    failed_score: float
    columns: Mapping[str, str]

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        texts = [without(self.special_tokens, each) for each in completions_of(queries, prompts)]
        batch = self.reward(build_samples(texts, prompts, {"label": labels}, self.columns))
        total = _tensor(np.where(batch.failed, self.failed_score, batch.total))
        logged = {**batch.components, "failed": batch.failed}
        logs = {name: _tensor(values) for name, values in logged.items()}
        return {"rewards": total, "scores": total, "extra_logs": logs}


def _tensor(values: npt.NDArray[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
