"""A `Reward` as OpenRLHF's reward function (OpenRLHF 0.11).

`--reward.remote_url rewards.py` names a file of your own, which has to define `reward_func`:

```python
reward_func = as_reward_func(reward, tokenizer.all_special_tokens, failed_score=-1.0,
                             columns={"labels": "label"})
```

OpenRLHF calls it with one sample at a time from several threads, and logs errors without ending
the run: try the function by hand before training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctrlreward.adapters.reading import (
    check_columns,
    check_failed_score,
    check_pointwise,
    samples_of,
)
from ctrlreward.reward import Reward
from ctrlreward.samples import shortened


def as_reward_func(
    reward: Reward,
    special_tokens: Sequence[str],
    failed_score: float,
    columns: Mapping[str, str] | None = None,
) -> Callable[..., dict[str, Any]]:
    """A function of queries (prompt and completion), prompts and labels, n of each.

    It returns `rewards` and `scores`, the totals, and `extra_logs`, each component and `failed`
    (1.0 or 0.0): float32 tensors of shape (n,). OpenRLHF has no notion of a sample without a
    reward, and NaN would spread to others' advantages: the caller says what such a sample is
    worth. Its components are NaN in `extra_logs`.

    Args:
        reward: Of scores that depend on one sample alone.
        special_tokens: What to take out of completions, which OpenRLHF decodes with special
            tokens: the tokenizer's `all_special_tokens`.
        failed_score: The score of a sample that failed, a finite number.
        columns: Column of `Samples` ← `"label"` or `"prompt"`. Texts are prefix and completion
            where prefixes are mapped, else the completion alone.

    Raises:
        ValueError: Columns that are not there, a score that is not finite, a component named
            `failed`, or one that is a score of several samples at once. When called: a query that
            does not begin with its prompt.
    """
    check_pointwise(reward, "OpenRLHF's reward_func")
    check_failed_score(reward, failed_score, ["failed"])
    mapped = check_columns(columns)

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        completions = _completions(queries, prompts, special_tokens)
        batch = reward(samples_of(completions, prompts, {"label": labels}, mapped))
        totals = _tensor(np.where(batch.failed, failed_score, batch.total))
        components = {name: _tensor(values) for name, values in batch.components.items()}
        return {
            "rewards": totals,
            "scores": totals,
            "extra_logs": {**components, "failed": _tensor(batch.failed)},
        }

    return reward_func


def _completions(
    queries: Sequence[str], prompts: Sequence[str], special_tokens: Sequence[str]
) -> list[str]:
    completions = []
    for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
        if not query.startswith(prompt):
            raise ValueError(
                f"queries[{i}] = {shortened(query)} does not begin with prompts[{i}] = "
                f"{shortened(prompt)}: was the prompt cut to fit the context? Allow more tokens"
            )
        completion = query[len(prompt) :]
        for token in special_tokens:
            completion = completion.replace(token, "")
        completions.append(completion)
    return completions


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)
