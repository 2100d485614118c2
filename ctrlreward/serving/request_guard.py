"""ASGI middleware around all routes: token, size of bodies, hanging up, errors without texts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol, TypeAlias

from ctrlreward.serving.wire import FINGERPRINT_HEADER
from ctrlreward.serving.wire_values import dumps

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Any]

# Routes that need no token: probes, and the description of the routes.
_OPEN = ("/health", "/ready", "/docs", "/openapi.json")

# Bodies up to this many times the limit are read and dropped, so that the client, which is still
# sending, sees the reply instead of a reset connection.
_DROPPED = 16

# Status of a request whose client hung up, as nginx writes it.
_HUNG_UP = 499


class ReplyObserver(Protocol):
    """Receiver of the status of each reply."""

    def replied(self, route: str, status: int) -> None:
        """Count a reply."""


class RequestGuard:
    """ASGI middleware that lets whole, small, authorised requests through.

    It reads the body, up to a limit of bytes and seconds, before a route sees the request, so no
    route is held up by a slow client. If the client hangs up, the route's task is cancelled. An
    error of a route is logged by type and place only: its message may quote a text.

    Args:
        app: The application.
        token: Bearer token that requests must have; None for no token.
        body_bytes: Longest body.
        body_seconds: Longest time for a body to arrive.
        fingerprint: Returns the fingerprint of the reward; None while it is not known.
        observer: Receives the status of each reply.
    """

    def __init__(
        self,
        app: Any,
        token: str | None,
        body_bytes: int,
        body_seconds: float,
        fingerprint: Callable[[], str | None],
        observer: ReplyObserver,
    ) -> None:
        self.app = app
        self.token = None if token is None else token.encode()
        self.body_bytes = body_bytes
        self.body_seconds = body_seconds
        self.fingerprint = fingerprint
        self.observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reply = _Reply(send, self.fingerprint)
        try:
            await self._serve(scope, receive, reply)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.observer.replied(route, reply.status or _HUNG_UP)

    async def _serve(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        headers = dict(scope["headers"])
        if not self._authorised(scope["path"], headers):
            bearer = {"WWW-Authenticate": "Bearer"}
            await reply.error(401, "give the server's token: Authorization: Bearer TOKEN", bearer)
            return
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await self._body(headers, receive)
        except TimeoutError:
            message = f"the body did not arrive within {self.body_seconds} s"
            await reply.error(408, message, {"Connection": "close"})
            return
        except _TooLarge:
            message = f"the body is longer than {self.body_bytes} bytes: send fewer samples"
            await reply.error(413, message, {"Connection": "close"})
            return
        if body is not None:
            await self._run(scope, body, receive, reply)

    def _authorised(self, path: str, headers: dict[bytes, bytes]) -> bool:
        if self.token is None or path in _OPEN:
            return True
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        return hmac.compare_digest(given.strip(), self.token) and scheme.lower() == b"bearer"

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Return the body; None if the client hung up."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > _DROPPED * self.body_bytes:
            raise _TooLarge
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            try:
                message = await receive()
            except Exception:  # of Ray Serve: the client hung up
                return None
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > _DROPPED * self.body_bytes:
                raise _TooLarge
            if size > self.body_bytes:
                chunks.clear()
            else:
                chunks.append(chunk)
            more = message.get("more_body", False)
        if size > self.body_bytes:
            raise _TooLarge
        return b"".join(chunks)

    async def _run(self, scope: Scope, body: bytes, receive: Receive, reply: _Reply) -> None:
        """Run the route until it replies or the client hangs up."""
        hung_up = asyncio.ensure_future(receive())  # returns only when the connection ends
        route = asyncio.ensure_future(self.app(scope, _replayed(body, hung_up), reply.send))
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
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        log.error("%s at %s:%d while serving %s", kind, last.filename, last.lineno, scope["path"])
        await reply.error(500, f"the server failed: {kind}")


class _TooLarge(Exception):
    """The body is longer than the limit."""


class _Reply:
    """The reply to one request, with the fingerprint's header; knows its status.

    Attributes:
        status: HTTP status; None before the reply has begun.
    """

    def __init__(self, send: Send, fingerprint: Callable[[], str | None]) -> None:
        self._send = send
        self._fingerprint = fingerprint
        self.status: int | None = None

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fingerprint = self._fingerprint()
            if fingerprint is not None:
                header = (FINGERPRINT_HEADER.lower().encode(), fingerprint.encode())
                message["headers"] = [*message.get("headers", []), header]
        await self._send(message)

    async def error(self, status: int, detail: Any, headers: dict[str, str] | None = None) -> None:
        """Send an error, unless the reply has begun."""
        if self.status is not None:
            return
        body = dumps({"detail": detail})
        named = {"content-type": "application/json", "content-length": str(len(body))}
        pairs = {**named, **(headers or {})}.items()
        start = [(name.lower().encode(), value.encode()) for name, value in pairs]
        await self.send({"type": "http.response.start", "status": status, "headers": start})
        await self.send({"type": "http.response.body", "body": body})


def _replayed(body: bytes, hung_up: asyncio.Future[Any]) -> Receive:
    """Return a `receive` that gives a body that has been read, and then waits for the end."""
    given = False

    async def receive() -> Any:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.shield(hung_up)

    return receive
