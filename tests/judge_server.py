"""Servers of models, on threads of the test; one speaks OpenAI's protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias

import pytest


class Refusal(NamedTuple):
    """A reply with a status of its own; `again` is its Retry-After."""

    status: int
    again: str | None = None
    content: bytes = b""
    encoding: str | None = None


class Server(ThreadingHTTPServer):
    """A server whose replies are a function of route and body, which is None for GET.

    A reply is JSON, bytes, a `Refusal`, or None to hang up.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def address(self) -> str:
        return f"{self.url}/v1"

    def handle_error(self, *_: Any) -> None:
        pass  # a client that no longer waits


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply(None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        self.reply(body)

    def reply(self, body: Any) -> None:
        answer = self.server.answer(self.path, body)
        self.close_connection = answer is None
        if answer is None:
            return
        if isinstance(answer, bytes):
            answer = Refusal(200, None, answer)
        elif not isinstance(answer, Refusal):
            answer = Refusal(200, None, json.dumps(answer).encode())
        self.send_response(answer.status)
        for name, value in (("Retry-After", answer.again), ("Content-Encoding", answer.encoding)):
            if value is not None:
                self.send_header(name, value)
        # A content that is cut off is shorter than its length says.
        cut = self.close_connection = answer.content.endswith(b"cut")
        self.send_header("Content-Length", str(len(answer.content) + 9 * cut))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def started(answer: Callable[[str, Any], Any]) -> Iterator[Server]:
    """Yield a server that answers until the end of the context."""
    with Server(answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


Serve: TypeAlias = Callable[[Callable[[str], Any]], Server]


@contextmanager
def serving(reply: Callable[[str], Any]) -> Iterator[Server]:
    """Yield a judge whose replies are a function of the message: a text, bytes or a `Refusal`."""

    def answer(path: str, body: Any) -> Any:
        answer = reply(body["messages"][0]["content"])
        if isinstance(answer, bytes | Refusal):
            return answer
        return {"choices": [{"message": {"content": answer}}]}

    with started(answer) as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function from the replies of a judge to its server."""
    with ExitStack() as servers:
        yield lambda reply: servers.enter_context(serving(reply))
