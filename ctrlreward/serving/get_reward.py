"""`POST /get_reward`: the route that OpenRLHF 0.11.2 asks, by `--reward.remote_url`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from ctrlreward.adapters._conversion import (
    build_samples,
    check_columns,
    check_failed_score,
    check_pointwise,
    completions_of,
    without,
)
from ctrlreward.arguments import one_of
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import check_columns as check_present


@dataclass(frozen=True)
class GetReward:
    """Options of `/get_reward`.

    The rate of failures is sent as well: the mean of a component over the samples that did not fail
    is (mean - rate * failed_score) / (1 - rate).

    Args:
        failed_score: Total and components of a failed sample, a finite number.
        columns: Column of `Samples` → `"label"` or `"prompt"`. Texts are prefix + completion if
            `prefixes` is mapped, else the completion alone.
        constants: Column of `Samples` → one text for all samples: `{"labels": "positive"}`.
        special_tokens: Tokens to remove from completions: the tokenizer's `all_special_tokens`.

    Examples:
        >>> GetReward(-1.0, columns={"labels": "tone"})
        Traceback (most recent call last):
        ValueError: columns.labels must be one of prompt, label, got 'tone'
    """

    failed_score: float
    columns: dict[str, str] | None = None
    constants: dict[str, str] | None = None
    special_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns, constants = check_columns(self.columns), check_columns(self.constants)
        for name, source in columns.items():
            one_of(f"columns.{name}", source, ("prompt", "label"))
            if name in constants:
                raise ValueError(f"{name} is in columns and in constants. Leave one out.")
        tokens: Any = self.special_tokens  # a string is one token
        tokens = (tokens,) if isinstance(tokens, str) else tuple(tokens)
        object.__setattr__(self, "special_tokens", tokens)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "constants", constants)

    def check(self, reward: Reward) -> None:
        """Raise a ValueError if the route can't serve a reward; loads no model."""
        check_pointwise(reward, "/get_reward")
        check_failed_score(reward, self.failed_score, ["failed", "total"])
        check_present(reward.components, self.samples([""], [""], [""]))

    def samples(
        self, completions: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None
    ) -> Samples:
        """Return the samples of n completions, without special tokens in the completions."""
        plain = [without(self.special_tokens, completion) for completion in completions]
        table: Mapping[str, Sequence[Any]] = {} if labels is None else {"label": labels}
        samples = build_samples(plain, prompts, table, self.columns or {})
        constants = {name: [text] * len(samples) for name, text in (self.constants or {}).items()}
        return samples.replace(**constants)


class _Body(BaseModel):
    """Body of OpenRLHF's `POST /get_reward`."""

    query: list[str] = Field(description="Prompt and completion, special tokens kept.")
    prompts: list[str]
    labels: list[Any] | None = None


def get_reward_route(options: GetReward, reward: Reward) -> APIRouter:
    """Return the route; raise a ValueError if it can't serve the reward."""
    options.check(reward)
    router = APIRouter()

    @router.post("/get_reward", summary="Rewards of samples, as OpenRLHF asks")
    async def get_reward(request: Request, body: _Body) -> dict[str, Any]:
        try:
            for name, items in {"prompts": body.prompts, "labels": body.labels}.items():
                if items is not None and len(items) != len(body.query):
                    raise ValueError(f"{name} has {len(items)} items, query {len(body.query)}")
            completions = completions_of(body.query, body.prompts)
            samples = options.samples(completions, body.prompts, body.labels)
        except (TypeError, ValueError) as error:
            raise HTTPException(422, str(error)) from None
        values = finite_values(await request.app.state.batcher.score(samples), options.failed_score)
        totals = values.pop("total")
        return {"rewards": totals, "scores": totals, "extra_logs": values}

    return router


def finite_values(batch: RewardBatch, failed_score: float) -> dict[str, list[float]]:
    """Return total, components and `failed` (1.0 or 0.0) of n samples; `failed_score` for NaN."""
    values = {}
    for name, scores in {"total": batch.total, **batch.components}.items():
        valid = ~batch.failed & np.isfinite(scores)
        values[name] = np.where(valid, scores, failed_score).tolist()
    return {**values, "failed": batch.failed.astype(np.float64).tolist()}
