"""The server: an ASGI application that scores requests with one reward."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer

from ctrlreward.command_line.reward_file import reward_of
from ctrlreward.reward import Reward
from ctrlreward.scorers.base import Scorer
from ctrlreward.serving.contract import (
    ERRORS,
    FINGERPRINT_HEADER,
    ErrorReply,
    FoldBody,
    FoldReply,
    Refusal,
    ScoreBody,
    ScorerBody,
    ScoreReply,
    ScoresReply,
    dumps,
    explained,
    score_reply,
    to_number,
    to_numbers,
)
from ctrlreward.serving.description import describe
from ctrlreward.serving.limits import Headers, LimitsMiddleware, ServeOptions
from ctrlreward.serving.remote_reward import RemoteReward
from ctrlreward.serving.request_queue import RequestQueue
from ctrlreward.serving.trainer_options import TrainerRoutes
from ctrlreward.serving.trainer_routes import trainer_routes

log = logging.getLogger(__name__)


def create_app(
    reward: Reward,
    options: ServeOptions = ServeOptions(),  # noqa: B008 — it is frozen
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """Return the application that serves a reward; its lifespan loads the models and drains.

    Handlers of further routes score with `await request.app.state.requests.score(samples)`. The
    application has `state.reward` and `state.requests`, a `RequestQueue`.
    """
    app = FastAPI(
        title="ctrlreward",
        version=version("ctrlreward"),
        description="Rewards and scores of generated text.",
        lifespan=_lifespan,
        redoc_url=None,
    )
    queue = RequestQueue(reward, options.queue)
    app.state.reward, app.state.requests, app.state.description = reward, queue, None
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(400, _unreadable)
    app.add_exception_handler(RecursionError, _unreadable)
    # What the middleware checks, told to readers of /docs.
    bearer = [Depends(HTTPBearer(auto_error=False))] if options.token else []
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply, "description": meaning}
        for status, meaning in ERRORS.items()
        if status != 401 or bearer
    }
    app.include_router(_probes(queue), responses=errors)
    for router in (_routes(queue), *routers):
        app.include_router(router, dependencies=bearer, responses=errors)

    def fingerprint() -> Headers:
        if app.state.description is None:
            return []
        value = app.state.description["fingerprint_id"]
        return [(FINGERPRINT_HEADER.lower().encode(), value.encode())]

    replied = queue.metrics.replied
    app.add_middleware(LimitsMiddleware, options=options, headers=fingerprint, replied=replied)
    return app


def served_app(
    block: Mapping[str, Any],
    device: str | None,
    options: ServeOptions,
    trainers: TrainerRoutes | None,
) -> FastAPI:
    """Return the application that serves the reward of a YAML file, as `read_reward` returns it.

    None keeps the devices of the scorers, and leaves the routes of trainers out. Raises a
    ValueError if a class or an argument is wrong, or the reward is on another server.
    """
    reward = reward_of(block, device)
    if not isinstance(reward, Reward):
        where = f", {reward.url}" if isinstance(reward, RemoteReward) else ""
        raise ValueError(f"the file has the reward of another server{where}: serve its own file")
    routers = [] if trainers is None else [trainer_routes(trainers, reward)]
    return create_app(reward, options, routers)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    queue: RequestQueue = app.state.requests

    def load_and_describe() -> None:
        queue.reward.load()
        app.state.description = describe(queue.reward)

    async def start() -> None:
        try:
            await queue.start(load_and_describe)
        except Exception as error:
            log.error("loading failed: %s: %s", type(error).__name__, error)

    app.state.loading = asyncio.create_task(start())
    try:
        yield
    finally:
        await queue.drain()


def _probes(queue: RequestQueue) -> APIRouter:
    """Return the routes that need no token."""
    router = APIRouter()

    @router.get("/health", summary="The process lives")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/ready", summary="The models are loaded; 503 before and after")
    async def ready() -> dict[str, str]:
        queue.check_ready()
        return {"status": "ready"}

    return router


def _routes(queue: RequestQueue) -> APIRouter:
    router = APIRouter()
    unknown: dict[int | str, dict[str, Any]] = {
        404: {"model": ErrorReply, "description": "There is no such scorer"}
    }

    @router.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def prometheus() -> Response:
        return Response(queue.metrics.text(), media_type="text/plain; version=0.0.4")

    @router.get(
        "/reward", summary="Names, directions, weights, fingerprint", response_model=dict[str, Any]
    )
    async def reward(request: Request) -> Response:
        queue.check_ready()
        return _json(request.app.state.description)

    @router.post("/score", summary="Rewards of samples", responses={200: {"model": ScoreReply}})
    async def score(body: ScoreBody) -> Response:
        return _json(score_reply(await queue.score(body.to_samples(), strict=body.strict)))

    @router.post(
        "/scorers/{scorer_id}/score",
        summary="Scores of one scorer",
        responses={200: {"model": ScoresReply}, **unknown},
    )
    async def score_with(scorer_id: str, body: ScorerBody) -> Response:
        known(scorer_id)
        scores = await queue.score_with(scorer_id, body.to_samples(), body.names)
        return _json({"scores": {name: to_numbers(values) for name, values in scores.items()}})

    @router.post(
        "/scorers/{scorer_id}/fold",
        summary="Score of a corpus from values of its samples",
        responses={200: {"model": FoldReply}, **unknown},
    )
    async def fold(scorer_id: str, body: FoldBody) -> Response:
        folds = known(scorer_id).corpus_folds
        if body.name not in folds:
            names = ", ".join(folds) or "none"
            message = f"no corpus score {body.name!r}: it has {names}"
            raise Refusal(422, message, place=("name",))
        found = folds[body.name]
        if len(body.parts) != len(found.parts):
            parts = ", ".join(found.parts)
            message = f"must be the parts {parts}, got {len(body.parts)}"
            raise Refusal(422, message, place=("parts",))
        values = [np.array(part, np.float64) for part in body.parts]
        return _json({"value": to_number(await asyncio.to_thread(found.fold, *values))})

    def known(scorer_id: str) -> Scorer:
        if scorer_id not in queue.scorers:
            ids = ", ".join(queue.scorers)
            raise HTTPException(404, f"No such scorer: {scorer_id!r}, must be one of {ids}")
        return queue.scorers[scorer_id]

    return router


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps(value), status, headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    after = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return _json({"detail": error.detail()}, error.status, after)


async def _invalid(request: Request, error: Exception) -> Response:
    """Reply to an invalid body; a body that is not JSON is a 400."""
    assert isinstance(error, RequestValidationError)
    for item in error.errors():
        if item["type"] == "json_invalid":
            where = f"at character {item['loc'][-1]}: {item['ctx']['error']}"
            return _json({"detail": f"malformed JSON {where}"}, 400)
        if item["type"] == "missing" and item["loc"] == ("body",):  # FastAPI reads no JSON then
            return _json({"detail": "malformed JSON: the body is empty"}, 400)
    return _json({"detail": explained(error.errors())}, 422)


async def _unreadable(request: Request, error: Exception) -> Response:
    """Reply to a body that is not UTF-8, or nested too deeply for a parser."""
    return _json({"detail": "malformed JSON: it can't be read"}, 400)
