"""Limits of the server, and the ASGI middleware that enforces them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ctrlreward.arguments import positive

log = logging.getLogger(__name__)

Headers: TypeAlias = list[tuple[bytes, bytes]]
ASGIMessage: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Any]
Send: TypeAlias = Callable[[ASGIMessage], Any]

# Routes that need no token: probes, and the description of the routes.
_OPEN = ("/health", "/ready", "/docs", "/openapi.json")

# Bodies up to this many times the limit are read and dropped, so that the client, which is still
# sending, sees the reply instead of a reset connection.
_DROPPED = 16

# All bodies together have at most this many times the limit of one.
_BODIES = 32

# The client of the request that a task serves: the header, else the host. While several wait, they
# are served in turn.
CLIENT_HEADER = "X-Ctrlreward-Client"
client: ContextVar[str] = ContextVar("client", default="")

# Status of a request whose client disconnected, as in nginx.
_HUNG_UP = 499


@dataclass(frozen=True)
class QueueOptions:
    """Sizes of the server's batches and of its queue.

    Args:
        batch_characters: Most characters of a batch, all columns together. A larger request is a
            separate batch. The models cut a batch by tokens again.
        window: Seconds to wait for the next request while a batch gathers, only if other
            requests arrived recently.
        waiting_characters: Most waiting characters; a request above it is rejected (429), unless
            none of its client's waits and they are fewer than twice as many.
        waiting_requests: Most waiting requests, likewise.
    """

    batch_characters: int = 65_536
    window: float = 0.005
    waiting_characters: int = 16_000_000
    waiting_requests: int = 4096

    def __post_init__(self) -> None:
        for name in ("batch_characters", "waiting_characters", "waiting_requests"):
            positive(name, getattr(self, name))
        if not 0 <= self.window < math.inf:
            raise ValueError(f"window must be 0 seconds or more, got {self.window}")


@dataclass(frozen=True)
class ServeOptions:
    """Limits of the server.

    Args:
        queue: Sizes of batches and of the queue.
        body_bytes: Longest body of a request; a longer one is rejected (413).
        body_seconds: Longest time for a body to arrive (408). A connection whose headers take
            longer is closed.
        token: Bearer token that requests must have, except to /health, /ready and the pages about
            the routes; None for no token.
    """

    queue: QueueOptions = field(default_factory=QueueOptions)
    body_bytes: int = 8 * 2**20
    body_seconds: float = 60.0
    token: str | None = None

    def __post_init__(self) -> None:
        positive("body_bytes", self.body_bytes)
        if not 0 < self.body_seconds < math.inf:
            raise ValueError(f"body_seconds must be positive, got {self.body_seconds}")
        if self.token is not None:
            check_token(self.token)


def check_token(token: str) -> None:
    """Raise if a header can't carry a token."""
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("the token must be ASCII letters and digits, and not empty")


def http_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol for a connection, closed if headers take longer to arrive.

    uvicorn itself waits forever for unfinished headers and for a first byte. Its protocol with
    httptools, its default, also stores headers and pipelined requests without a limit.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # A cycle begins when the headers of a request are complete.
            if self.cycle is not None and not self.cycle.response_complete:
                self.stop_waiting()
            elif self.deadline is None:
                self.deadline = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            super().connection_lost(exc)

        def stop_waiting(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Protocol


class LimitsMiddleware:
    """ASGI middleware that passes complete, small, authorised requests.

    It reads the body before a route sees the request, so that no route waits for a slow client. If
    the client disconnects, the route's task is cancelled. `headers` returns headers to add to each
    reply; `replied` receives route and status of each.
    """

    def __init__(
        self,
        app: Any,
        options: ServeOptions,
        headers: Callable[[], Headers],
        replied: Callable[[str, int], None],
    ) -> None:
        self.app = app
        self.options = options
        self.headers = headers
        self.replied = replied
        self.held_bytes = 0  # of all bodies

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one event of ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reply = _Reply(send, self.headers)
        try:
            headers = dict(scope["headers"])
            if b"content-length" in headers and b"transfer-encoding" in headers:
                # Proxies differ in which one they read, so the next request may be smuggled.
                message = "send Content-Length or Transfer-Encoding, not both"
                raise _Refused(400, message, {"connection": "close"})
            self._check_token(scope["path"], headers)
            async with asyncio.timeout(self.options.body_seconds):
                body = await self._body(headers, receive, reply)
            coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
            if body and coding.lower() != "identity":
                message = f"the body has Content-Encoding: {coding}, must be sent uncompressed"
                raise _Refused(415, message, {"accept-encoding": "identity"})
            if body is not None:
                # All bodies are JSON, and FastAPI parses one only with the content type.
                others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
                scope["headers"] = [*others, (b"content-type", b"application/json")]
                await self._run(scope, body, receive, reply)
        except TimeoutError:
            message = f"the body did not arrive within {self.options.body_seconds} s"
            await reply.error(408, message, {"connection": "close"})
        except _Refused as refused:
            await reply.error(*refused.args)
        finally:
            self.held_bytes -= reply.body_bytes
            route = getattr(scope.get("route"), "path", None) or "other"
            self.replied(route, reply.status or _HUNG_UP)

    def _check_token(self, path: str, headers: dict[bytes, bytes]) -> None:
        if self.options.token is None or path in _OPEN:
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        equal = hmac.compare_digest(token.strip(), self.options.token.encode())
        if not equal or scheme.lower() != b"bearer":
            message = "the server needs its token: Authorization: Bearer TOKEN"
            raise _Refused(401, message, {"www-authenticate": "Bearer"})

    async def _body(
        self, headers: dict[bytes, bytes], receive: Receive, reply: _Reply
    ) -> bytes | None:
        """Return the body; None if the client disconnected."""
        limit = self.options.body_bytes
        message = f"the body is longer than {limit} bytes: send fewer samples"
        too_large = _Refused(413, message, {"connection": "close"})
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > _DROPPED * limit:
            raise too_large
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            try:
                event = await receive()
            except Exception:  # of Ray Serve: the client disconnected
                return None
            if event["type"] == "http.disconnect":
                return None
            chunk = event.get("body", b"")
            size += len(chunk)
            if size > _DROPPED * limit:
                raise too_large
            if size > limit:
                chunks.clear()
            else:
                chunks.append(chunk)
                reply.body_bytes += len(chunk)
                self.held_bytes += len(chunk)
                if self.held_bytes > _BODIES * limit:
                    message = f"requests of {_BODIES * limit} bytes are waiting: ask again in 1 s"
                    raise _Refused(503, message, {"retry-after": "1", "connection": "close"})
            more = event.get("more_body", False)
        if size > limit:
            raise too_large
        return b"".join(chunks)

    async def _run(
        self, scope: MutableMapping[str, Any], body: bytes, receive: Receive, reply: _Reply
    ) -> None:
        """Run the route until it replies or the client disconnects."""
        hung_up = asyncio.ensure_future(receive())  # returns only when the connection ends
        events = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replayed() -> Any:
            return next(events, None) or await asyncio.shield(hung_up)

        host = (scope.get("client") or ("",))[0].encode()
        named = dict(scope["headers"]).get(CLIENT_HEADER.lower().encode(), host)
        client.set(named.decode("latin-1"))
        route = asyncio.ensure_future(self.app(scope, replayed, reply.send))
        try:
            await asyncio.wait({route, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not route.done() and reply.status is not None:  # the reply is on its way
                await asyncio.wait({route})
        finally:
            for task in (route, hung_up):
                task.cancel()
            await asyncio.gather(hung_up, return_exceptions=True)
            await asyncio.wait({route})
        error = None if route.cancelled() else route.exception()
        if error is None:
            return
        # By type and line only, since the message may quote a text.
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        log.error("%s at %s:%d while serving %s", kind, last.filename, last.lineno, scope["path"])
        await reply.error(500, f"the server failed: {kind}")


class _Refused(Exception):
    """A request above a limit: status, message and headers of the reply."""


@dataclass
class _Reply:
    """The reply to one request, with further headers."""

    sender: Send
    headers: Callable[[], Headers]
    status: int | None = None  # before the reply has begun
    body_bytes: int = 0  # that the request holds

    async def send(self, message: ASGIMessage) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *self.headers()]
        await self.sender(message)

    async def error(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an error, unless the reply has begun."""
        from starlette.responses import JSONResponse  # which a client may not have

        unread: Any = None
        if self.status is None:
            response = JSONResponse({"detail": detail}, status, headers)
            await response({"type": "http"}, unread, self.send)
