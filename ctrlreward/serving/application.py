"""The server: an ASGI application that scores requests with one reward."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

from ctrlreward.arguments import positive
from ctrlreward.command_line.reward_file import reward_of
from ctrlreward.reward import Reward
from ctrlreward.serving.batcher import Batcher
from ctrlreward.serving.contract import (
    MOST_BYTES,
    ErrorReply,
    ScoreBody,
    ScoreReply,
    dumps,
    score_reply,
)
from ctrlreward.serving.description import describe
from ctrlreward.serving.get_reward import GetReward, get_reward_route
from ctrlreward.serving.remote_reward import check_token

log = logging.getLogger(__name__)

_ERRORS = (400, 401, 411, 413, 415, 422, 500, 503)
_OTHER_HOST = (
    "a server without a token answers only requests to localhost, 127.0.0.1 or [::1]: set "
    "CTRLREWARD_TOKEN for server and clients"
)
_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d*)?", re.IGNORECASE)
_OPEN = ("/health", "/openapi.json", "/ready")


def create_app(
    reward: Reward,
    token: str | None = None,
    waiting: int = 4096,
    get_reward: GetReward | None = None,
    block: Mapping[str, Any] | None = None,
) -> FastAPI:
    """Return the application that serves a reward; its lifespan loads the models and drains.

    Args:
        reward: The reward.
        token: Bearer token that requests must have, except to /health, /openapi.json and /ready,
            which describes the reward only to those who have it. None for no token: the Host must
            be localhost, 127.0.0.1 or [::1], so that no page in a browser can ask.
        waiting: Most requests that wait; one more is refused (503).
        get_reward: Options of the route of OpenRLHF; None leaves it out.
        block: Block of YAML that built the reward, which tells it from others; see `describe`.
    """
    if token is not None:
        check_token(token)
    batcher = Batcher(reward, positive("waiting", waiting))
    described: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        def load_models() -> None:
            reward.load()
            described.update(describe(reward, block))

        app.state.loading = asyncio.create_task(batcher.load(load_models))
        try:
            yield
        finally:
            await batcher.drain()

    app = FastAPI(
        title="ctrlreward",
        version=version("ctrlreward"),
        description="Rewards and scores of generated text.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={status: {"model": ErrorReply} for status in _ERRORS},
    )
    app.state.batcher = batcher

    def authorised(request: Request) -> bool:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        known = token is None or hmac.compare_digest(sent.strip().encode(), token.encode())
        return token is None or (known and kind.lower() == "bearer")

    @app.get("/health", summary="The process lives")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get(
        "/ready",
        summary="The models are loaded, and the reward's description; 503 before and after",
    )
    async def ready(request: Request) -> dict[str, Any]:
        batcher.check_ready()
        return {"status": "ready", **(described if authorised(request) else {})}

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        content = generate_latest(batcher.metrics.registry)
        return Response(content, media_type="text/plain; version=0.0.4")

    @app.post(
        "/score",
        summary="Rewards of samples",
        responses={200: {"model": ScoreReply}},
    )
    async def score(body: ScoreBody) -> Response:
        try:
            samples = body.to_samples()
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        reply = score_reply(await batcher.score(samples), described["fingerprint_id"])
        return Response(reply, media_type="application/json")

    if get_reward is not None:
        app.include_router(get_reward_route(get_reward, reward))

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Refuse by the headers, before a body is read; count replies, and log no message, which
        may quote a text.
        """
        if token is None and not _LOOPBACK.fullmatch(request.headers.get("host", "")):
            response = _error(400, _OTHER_HOST)
        elif request.scope["path"] not in _OPEN and not authorised(request):
            message = "the server needs its token: Authorization: Bearer TOKEN"
            response = _error(401, message, {"WWW-Authenticate": "Bearer"})
        elif "transfer-encoding" in request.headers:  # whose length nothing limits
            message = "send Content-Length in place of Transfer-Encoding"
            response = _error(411, message, {"Connection": "close"})
        elif int(request.headers.get("content-length", "0")) > MOST_BYTES:
            message = f"the body is longer than {MOST_BYTES} bytes: send fewer samples"
            response = _error(413, message)
        else:
            try:
                response = await call_next(request)
            except Exception as error:
                kind = type(error).__name__
                log.error("%s while serving %s", kind, request.url.path)
                response = _error(500, f"the server failed: {kind}")
        route = getattr(request.scope.get("route"), "path", "other")
        batcher.metrics.requests.labels(route, str(response.status_code)).inc()
        return response

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, error.detail, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        """Reply to an invalid body without repeating it, since it has texts."""
        media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if not media_type.endswith("json"):  # then the body was not parsed
            return _error(415, "send Content-Type: application/json")
        errors = error.errors()[:100]  # each sample may have the same
        return _error(422, [{key: item[key] for key in ("loc", "msg", "type")} for item in errors])

    return app


def served_app(block: Mapping[str, Any], device: str | None = None, **options: Any) -> FastAPI:
    """Return the application that serves the reward of a YAML file, as `read_reward` returns it.

    None keeps the devices of the scorers; `options` go to `create_app`. Raises a ValueError
    if a class or an argument is wrong, or the reward is on another server.
    """
    reward = reward_of(block, device)
    if not isinstance(reward, Reward):
        raise ValueError("the file has the reward of another server: serve that server's file")
    return create_app(reward, block=block, **options)


def _error(status: int, detail: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(dumps({"detail": detail}), status, headers, media_type="application/json")
