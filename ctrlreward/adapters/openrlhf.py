"""Adapter of a `Reward` to OpenRLHF's reward function (OpenRLHF 0.11).

`--reward.remote_url rewards.py` names a Python file that defines `reward_func`. OpenRLHF logs its
exceptions and continues with a reward of None, which ends the run later; so call the function by
hand first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctrlreward.adapters._conversion import (
    build_samples,
    check_columns,
    check_single_samples,
    completions_of,
    finite_values,
)
from ctrlreward.reward import AnyReward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples


def as_reward_func(
    reward: RewardLike,
    end_tokens: str | Sequence[str],
    failed_score: float,
    columns: Mapping[str, str] | None = None,
) -> OpenRLHFReward:
    """Return a function of n queries (prompt + completion), n prompts and n labels.

    The function returns `rewards` and `scores`, which are both the total, and `extra_logs` with
    each component and `failed` (1.0 or 0.0): float32 tensors of shape (n,). All values of a failed
    sample are `failed_score`, so that the mean of a component over the others is
    (mean - rate * failed_score) / (1 - rate).

    Args:
        reward: Reward whose scores depend on one sample alone, or the arguments of `Reward`.
        end_tokens: Tokens that end a completion, since OpenRLHF decodes with special tokens: the
            tokenizer's `eos_token`. What follows the first one is not scored.
        failed_score: Score of a failed sample, a finite number: NaN would spread to others.
        columns: Column of `Samples` → `"label"` or `"prompt"`. Texts are prefix + completion if
            `prefixes` is mapped, else the completion alone.

    Raises:
        ValueError: When called: a query does not start with its prompt.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
        >>> reward_func = as_reward_func(similarity, "<eos>", -1.0, {"sources": "label"})
        >>> reward_func(["Reword: broth<eos>"], ["Reword: "], ["soup"])["rewards"]
        tensor([0.6000])
    """
    reward = as_reward(reward)
    check_single_samples(reward, failed_score, ["failed", "rewards"])
    tokens = (end_tokens,) if isinstance(end_tokens, str) else tuple(end_tokens)
    return OpenRLHFReward(reward, tokens, failed_score, check_columns(columns, reward))


@dataclass(frozen=True, eq=False)
class OpenRLHFReward:
    """The function of `as_reward_func`: an object instead of a closure, which doesn't pickle."""

    reward: AnyReward
    end_tokens: tuple[str, ...]
    failed_score: float
    columns: Mapping[str, str]

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        import torch  # which `ctrlreward serve --help` does not wait for

        values = self.values(self.reward(self.samples(queries, prompts, labels)))
        tensors = {
            name: torch.tensor(scores, dtype=torch.float32) for name, scores in values.items()
        }
        total = tensors.pop("rewards")
        return {"rewards": total, "scores": total, "extra_logs": tensors}

    def samples(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None
    ) -> Samples:
        completions = completions_of(queries, prompts, self.end_tokens)
        table = {} if labels is None else {"label": labels}
        return build_samples(completions, prompts, table, self.columns)

    def values(self, batch: RewardBatch) -> dict[str, list[float]]:
        return finite_values(batch, self.failed_score, "rewards")
