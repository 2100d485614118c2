"""A server of a language model, on a thread of the test, that speaks OpenAI's protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """A reply with a status of an error."""

    status: int
    retry_after: str | None = None


class Server(ThreadingHTTPServer):
    """A server whose replies are a function of the message: a text, bytes or a `Refusal`."""

    daemon_threads = True

    def __init__(self, reply: Callable[[str], Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = reply
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.usage: dict[str, int] | None = None  # of each reply, in tokens

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *_: Any) -> None:
        pass  # a client that no longer waits


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        answer = self.server.reply(body["messages"][0]["content"])
        refused = answer if isinstance(answer, Refusal) else None
        reply = {"choices": [{"message": {"content": answer}}], "usage": self.server.usage}
        content = answer if isinstance(answer, bytes) else json.dumps(reply).encode()
        self.send_response(refused.status if refused else 200)
        if refused and refused.retry_after is not None:
            self.send_header("Retry-After", refused.retry_after)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(reply: Callable[[str], Any]) -> Iterator[Server]:
    """Yield a server that answers until the end of the context."""
    with Server(reply) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
