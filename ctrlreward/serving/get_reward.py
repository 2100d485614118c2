"""`POST /get_reward`: the route that OpenRLHF 0.11.2 asks, by `--reward.remote_url`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from ctrlreward.adapters.openrlhf import as_reward_func
from ctrlreward.reward import Reward


@dataclass(frozen=True)
class GetReward:
    """Options of `/get_reward`, as in `ctrlreward.adapters.openrlhf.as_reward_func`.

    Args:
        failed_score: Total and components of a failed sample, a finite number.
        columns: Column of `Samples` → `"label"` or `"prompt"`. Texts are prefix + completion if
            `prefixes` is mapped, else the completion alone.
        end_tokens: Tokens that end a completion: the tokenizer's `eos_token`.
    """

    failed_score: float
    columns: dict[str, str] | None = None
    end_tokens: tuple[str, ...] = ()


class _Body(BaseModel):
    """Body of OpenRLHF's `POST /get_reward`."""

    query: list[str] = Field(description="Prompt and completion, special tokens kept.")
    prompts: list[str]
    labels: list[Any] | None = None


def get_reward_route(options: GetReward, reward: Reward) -> APIRouter:
    """Return the route; raise a ValueError if it can't serve the reward."""
    convert = as_reward_func(reward, options.end_tokens, options.failed_score, options.columns)
    convert.samples([""], [""], [""])
    router = APIRouter()

    @router.post("/get_reward", summary="Rewards of samples, as OpenRLHF asks")
    async def get_reward(request: Request, body: _Body) -> dict[str, Any]:
        try:
            samples = convert.samples(body.query, body.prompts, body.labels)
        except (TypeError, ValueError) as error:
            raise HTTPException(422, str(error)) from None
        values = convert.values(await request.app.state.batcher.score(samples))
        totals = values.pop("rewards")
        return {"rewards": totals, "scores": totals, "extra_logs": values}

    return router
