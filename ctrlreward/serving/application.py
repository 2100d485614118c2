"""The server: an ASGI application that scores requests with one reward."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError

from ctrlreward.reward import Reward
from ctrlreward.serving.description import describe
from ctrlreward.serving.queue_options import QueueOptions
from ctrlreward.serving.refusals import Refusal, RejectedSamples
from ctrlreward.serving.request_bodies import FOLD, SCORE, SCORER
from ctrlreward.serving.request_guard import RequestGuard
from ctrlreward.serving.request_queue import RequestQueue
from ctrlreward.serving.serving_metrics import ServingMetrics
from ctrlreward.serving.wire import (
    fold_reply,
    parse_fold_body,
    parse_score_body,
    parse_scorer_body,
    score_reply,
    scores_reply,
)
from ctrlreward.serving.wire_values import InvalidBody, dumps, loads

log = logging.getLogger(__name__)

# Bodies and replies from this length on are read and written beside the event loop.
_LONG = 100_000


@dataclass(frozen=True)
class ServeOptions:
    """Limits of the server.

    Args:
        queue: Sizes of batches and of the queue.
        body_bytes: Longest body of a request; a longer one is refused (413).
        body_seconds: Longest time for a body to arrive (408).
        token: Bearer token that requests must have, except to /health, /ready and the pages about
            the routes; None for no token.

    Raises:
        ValueError: A limit is not positive, or the token is empty or not ASCII.
    """

    queue: QueueOptions = field(default_factory=QueueOptions)
    body_bytes: int = 8 * 2**20
    body_seconds: float = 60.0
    token: str | None = None

    def __post_init__(self) -> None:
        if self.body_bytes < 1:
            raise ValueError(f"body_bytes = {self.body_bytes}: give a positive number")
        if not 0 < self.body_seconds < math.inf:
            raise ValueError(f"body_seconds = {self.body_seconds}: give a positive number")
        if self.token is not None and not (self.token.isascii() and self.token.strip()):
            raise ValueError("the token is empty or not ASCII: give some letters and digits")


def create_app(
    reward: Reward,
    options: ServeOptions = ServeOptions(),
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """Return the application that serves a reward; its lifespan loads the models and drains.

    Args:
        reward: The reward; its scorers are on their devices.
        options: Limits.
        routers: Further routes, such as those of trainers. Their handlers score with
            `await request.app.state.requests.score(samples)`.

    Returns:
        An ASGI application with `state.reward` and `state.requests`, a `RequestQueue`.
    """
    app = FastAPI(
        title="ctrlreward",
        version=version("ctrlreward"),
        description="Rewards and scores of generated text.",
        lifespan=_lifespan,
        redoc_url=None,
    )
    queue = RequestQueue(reward, options.queue)
    metrics = ServingMetrics(lambda: queue.held_characters, lambda: queue.state == "ready")
    queue.observer = metrics
    app.state.reward, app.state.requests, app.state.metrics = reward, queue, metrics
    app.state.description = None
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(InvalidBody, _invalid)
    app.add_exception_handler(RequestValidationError, _unlike_model)
    app.include_router(_routes())
    for router in routers:
        app.include_router(router)
    app.add_middleware(
        RequestGuard,
        token=options.token,
        body_bytes=options.body_bytes,
        body_seconds=options.body_seconds,
        fingerprint=lambda: (app.state.description or {}).get("fingerprint_id"),
        observer=metrics,
    )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.loading = asyncio.create_task(_load(app))
    try:
        yield
    finally:
        await app.state.requests.drain()


async def _load(app: FastAPI) -> None:
    """Load the models and describe the reward; its error stays in the task."""
    queue: RequestQueue = app.state.requests

    def load_and_describe() -> None:
        queue.reward.load()
        app.state.description = describe(queue.reward)

    try:
        await queue.start(load_and_describe)
    except Exception as error:
        log.error("loading failed: %s: %s", type(error).__name__, error)


def _routes() -> APIRouter:
    router = APIRouter()
    router.add_api_route("/health", _health, summary="The process lives")
    router.add_api_route("/ready", _ready, summary="The models are loaded; 503 before and after")
    router.add_api_route("/metrics", _metrics, summary="Prometheus metrics")
    router.add_api_route("/reward", _reward, summary="Names, directions, weights, fingerprint")
    posts: list[tuple[str, Callable[..., Any], str, dict[str, Any]]] = [
        ("/score", _score, "Rewards of samples", SCORE),
        ("/scorers/{scorer_id}/score", _score_with, "Scores of one scorer", SCORER),
        ("/scorers/{scorer_id}/fold", _fold, "Score of a corpus from values of its samples", FOLD),
    ]
    for path, handler, summary, schema in posts:
        router.add_api_route(path, handler, methods=["POST"], summary=summary, openapi_extra=schema)
    return router


async def _health() -> dict[str, str]:
    return {"status": "alive"}


async def _ready(request: Request) -> dict[str, str]:
    request.app.state.requests.check_ready()
    return {"status": "ready"}


async def _metrics(request: Request) -> Response:
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4")


async def _reward(request: Request) -> Response:
    request.app.state.requests.check_ready()
    return _json(request.app.state.description)


async def _score(request: Request) -> Response:
    body = await _parsed(request, parse_score_body)
    scored = await request.app.state.requests.score(body.samples, strict=body.strict)
    return await _beside(len(body.samples) * 100, lambda: _json(score_reply(scored)))


async def _score_with(scorer_id: str, request: Request) -> Response:
    queue = _queue_with(scorer_id, request)
    body = await _parsed(request, parse_scorer_body)
    scores = await queue.score_with(scorer_id, body.samples, body.names)
    return await _beside(len(body.samples) * 20, lambda: _json(scores_reply(scores)))


async def _fold(scorer_id: str, request: Request) -> Response:
    queue = _queue_with(scorer_id, request)
    body = await _parsed(request, parse_fold_body)
    folds = queue.scorers[scorer_id].corpus_folds
    if body.name not in folds:
        known = ", ".join(folds) or "none"
        raise RejectedSamples(f"no corpus score {body.name!r}: it has {known}", ("name",))
    fold = folds[body.name]
    if len(body.parts) != len(fold.parts):
        parts = ", ".join(fold.parts)
        raise RejectedSamples(f"{len(body.parts)} parts: give {parts}", ("parts",))
    return _json(fold_reply(await asyncio.to_thread(fold.fold, *body.parts)))


def _queue_with(scorer_id: str, request: Request) -> RequestQueue:
    queue: RequestQueue = request.app.state.requests
    if scorer_id not in queue.scorers:
        known = ", ".join(queue.scorers)
        raise HTTPException(404, f"there is no scorer {scorer_id!r}: the ids are {known}")
    return queue


async def _parsed(request: Request, parse: Callable[[object], Any]) -> Any:
    """Return the content of a body.

    Raises:
        HTTPException: With status 400, if it is malformed JSON.
        InvalidBody: It is not what the route takes.
    """
    content = await request.body()
    try:
        given = await _beside(len(content), lambda: loads(content))
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    return await _beside(len(content), lambda: parse(given))


async def _beside(size: int, call: Callable[[], Any]) -> Any:
    """Run a call, on another thread if it is a long one, which would hold up other clients."""
    return call() if size < _LONG else await asyncio.to_thread(call)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dumps(value), status, headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    after = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return _json({"detail": error.detail()}, error.status, after)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidBody)
    return _json({"detail": error.detail()}, 422)


async def _unlike_model(request: Request, error: Exception) -> Response:
    """Reply to a body that a further route's model refuses; malformed JSON is 400, as on ours."""
    assert isinstance(error, RequestValidationError)
    for item in error.errors():
        if item["type"] == "json_invalid":
            place, reason = item["loc"][-1], item["ctx"]["error"]
            return _json({"detail": f"malformed JSON at character {place}: {reason}"}, 400)
        if item["type"] == "missing" and len(item["loc"]) == 1:  # FastAPI reads no JSON then
            return _json({"detail": "malformed JSON: the body is empty"}, 400)
    return await request_validation_exception_handler(request, error)
