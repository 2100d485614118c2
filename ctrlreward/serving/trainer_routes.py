"""Routes with which other trainers query a served reward: OpenRLHF, slime, verl and NeMo Gym.

| Route         | Trainer         | Setting                                                   |
|---------------|-----------------|-----------------------------------------------------------|
| `/get_reward` | OpenRLHF 0.11.2 | `--reward.remote_url http://127.0.0.1:8700/get_reward`    |
| `/slime`      | slime           | `--rm-type remote_rm --rm-url http://127.0.0.1:8700/slime` |
| `/classify`   | verl 0.9.1      | address of the reward router, engine `vllm`               |
| `/v1/embeddings` | verl 0.9.1   | the same, engine `sglang`                                 |
| `/verify`     | NeMo Gym 0.7.0  | address of the resources server                           |

`/verify` masks a failed sample and says why. The others have no mask, and get `failed_score`.
A full queue holds a request for `TrainerRoutes.patience` seconds and then answers 503, not 429:
verl retries after a 5xx only. OpenRLHF and slime retry after any error.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ctrlreward.adapters._conversion import completions_of
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.serving.contract import Refusal, dumps
from ctrlreward.serving.trainer_options import TrainerRoutes
from ctrlreward.text.chats import plain_text


class _OpenRLHFRequest(BaseModel):
    """Body of OpenRLHF's `POST /get_reward`."""

    query: list[str] = Field(description="Prompt and completion, special tokens kept.")
    prompts: list[str]
    labels: list[Any] | None = None


class _SlimeRequest(BaseModel):
    """Body of slime's `remote_rm`."""

    prompt: str | list[dict[str, Any]]
    response: str
    label: Any = None


class _VerifyRequest(BaseModel):
    """Body of NeMo Gym's `POST /verify`: a row of its dataset, with OpenAI's response to it."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any]
    response: dict[str, Any]
    label: Any = None


class _TextsRequest(BaseModel):
    """Body of vLLM's `POST /classify`, and of SGLang's `POST /v1/embeddings`."""

    input: str | list[str] = Field(description="Prompt and response in a chat template.")
    model: str | None = None
    use_activation: bool | None = None


def trainer_routes(options: TrainerRoutes, reward: Reward) -> APIRouter:
    """Return the routes for `create_app(reward, routers=[trainer_routes(options, reward)])`.

    Raises:
        ValueError: The routes can't serve the reward.
    """
    options.check(reward)
    router = APIRouter(tags=["trainers"])

    async def score(request: Request, samples: Samples) -> RewardBatch:
        """Score samples in the queue of the application, and wait while it is full."""
        queue, deadline = request.app.state.requests, time.monotonic() + options.patience
        while True:
            try:
                return (await queue.score(samples, strict=options.strict)).batch
            except Refusal as refused:
                if refused.status != 429:
                    raise
                if time.monotonic() >= deadline:
                    raise Refusal(503, str(refused), retry_after=1) from None
                await asyncio.sleep(min(1.0, options.patience))

    async def values_of(request: Request, samples: Samples) -> dict[str, list[float]]:
        return _finite_values(await score(request, samples), options.failed_score)

    @router.post("/get_reward")
    async def get_reward(request: Request, body: _OpenRLHFRequest) -> dict[str, Any]:
        """Score queries in OpenRLHF's format: one reward per query."""
        with _rejections("query"):
            for name, items in {"prompts": body.prompts, "labels": body.labels}.items():
                if items is not None and len(items) != len(body.query):
                    raise ValueError(
                        f"{name} has {len(items)} items, but query has {len(body.query)}. "
                        "Send one item per query."
                    )
            completions = completions_of(body.query, body.prompts)
            samples = options.samples(completions, body.prompts, body.labels)
        values = await values_of(request, samples)
        totals = values.pop("total")
        return {"rewards": totals, "scores": totals, "extra_logs": values}

    @router.post("/slime")
    async def slime(request: Request, body: _SlimeRequest, components: bool = False) -> Any:
        """Score a response in slime's format.

        The reply is a number; with `?components=true` it is an object, for `--reward-key total`.
        """
        with _rejections("response"):
            labels = None if body.label is None else [body.label]
            samples = options.samples([body.response], [plain_text(body.prompt)], labels)
        values = await values_of(request, samples)
        row = {name: value for name, (value,) in values.items()}
        return row if components else row["total"]

    @router.post("/seed_session")
    async def seed_session() -> dict[str, Any]:
        """Start a rollout of NeMo Gym; a reward keeps nothing of it."""
        return {}

    @router.post("/verify", response_model=dict[str, Any])
    async def verify(request: Request, body: _VerifyRequest) -> Response:
        """Score a response as NeMo Gym asks; the reply repeats the request, as its schema wants.

        Scores are fields of the reply, which NeMo Gym averages; one that failed is left out.
        `reward_components`, for GDPO, are weight × score of each component of a weighted sum. A
        failed sample has `mask_sample`, so that nothing is learned from it, and `failure_reason`.
        """
        with _rejections("response"):
            prompt = plain_text(body.responses_create_params.get("input", ""))
            written = [item for item in body.response.get("output", ()) if "content" in item]
            labels = None if body.label is None else [body.label]
            samples = options.samples([plain_text(written)], [prompt], labels)
        batch = await score(request, samples)
        scores = {name: float(values[0]) for name, values in batch.components.items()}
        absent = [name for name, value in scores.items() if not np.isfinite(value)]
        failed = bool(batch.failed[0])
        result = body.model_dump() | {name: scores[name] for name in scores if name not in absent}
        result |= {"reward": 0.0 if failed else float(batch.total[0]), "mask_sample": failed}
        if reward.weights is not None:
            parts = {name: weight * scores[name] for name, weight in reward.weights.items()}
            result["reward_components"] = dict.fromkeys(parts, 0.0) if failed else parts
        if failed:
            result["failure_kind"] = "ctrlreward:no_score"
            result["failure_reason"] = f"no finite score of {', '.join(absent) or 'the total'}"
        # What JSON lacks, NaN and infinity, is repeated as null.
        plain = json.loads(json.dumps(result), parse_constant=lambda _: None)
        return Response(dumps(plain), media_type="application/json")

    async def totals_of(request: Request, body: _TextsRequest) -> list[float]:
        """Return the total of each text of a chat template."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        with _rejections("input"):
            if options.template is None:
                raise ValueError(
                    "this server can't tell prompt from response. Start it with "
                    "--trainers.template.response_start, the text between them in your chat "
                    "template."
                )
            if body.use_activation:
                raise ValueError(
                    "use_activation must be false, got true; a reward has no activation"
                )
            pairs = [options.template.split(text) for text in texts]
            samples = options.samples([r for _, r in pairs], [p for p, _ in pairs], None)
        return (await values_of(request, samples))["total"]

    @router.post("/classify", response_model=dict[str, Any])
    async def classify(request: Request, body: _TextsRequest) -> Response:
        """Score texts of a chat template in vLLM's format, for verl: the value of one class."""
        data = [
            {"index": i, "label": "reward", "probs": [total], "num_classes": 1}
            for i, total in enumerate(await totals_of(request, body))
        ]
        return _list_of(data, "classify", body.model)

    @router.post("/v1/embeddings", response_model=dict[str, Any])
    async def embeddings(request: Request, body: _TextsRequest) -> Response:
        """Score texts of a chat template in SGLang's format, for verl: a value as an embedding."""
        data = [
            {"index": i, "object": "embedding", "embedding": [total]}
            for i, total in enumerate(await totals_of(request, body))
        ]
        return _list_of(data, "embd", body.model)

    return router


def _list_of(data: list[dict[str, Any]], kind: str, model: str | None) -> Response:
    """Return a reply in the form that vLLM and SGLang give a list."""
    own = {"id": f"{kind}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    return Response(dumps({**own, "model": model, "data": data}), media_type="application/json")


def _finite_values(batch: RewardBatch, failed_score: float) -> dict[str, list[float]]:
    """Return total, components and `failed` (1.0 or 0.0) of n samples; `failed_score` for NaN."""
    values = {}
    for name, scores in {"total": batch.total, **batch.components}.items():
        valid = ~batch.failed & np.isfinite(scores)
        values[name] = np.where(valid, scores, failed_score).tolist()
    return {**values, "failed": batch.failed.astype(np.float64).tolist()}


@contextmanager
def _rejections(key: str) -> Iterator[None]:
    """Add the location in the body to an error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise Refusal(422, str(error), place=(key,)) from error
