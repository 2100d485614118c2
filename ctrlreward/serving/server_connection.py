"""Connection of a client to a reward server: retries, and the check of the served reward."""

from __future__ import annotations

import json
import logging
import os
import random
import time
import uuid
from collections.abc import Mapping
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any
from urllib.parse import urlsplit

import httpx2

from ctrlreward.arguments import positive
from ctrlreward.scorers.model_servers import LOOPBACK, check_address, retry_after
from ctrlreward.serving.contract import FINGERPRINT_HEADER, PROTOCOL, dumps
from ctrlreward.serving.description import differences
from ctrlreward.serving.limits import CLIENT_HEADER, check_token

log = logging.getLogger(__name__)

# Token of a server and its clients, so that it is not in a command line, YAML or checkpoint.
TOKEN_VARIABLE = "CTRLREWARD_TOKEN"

_IDLE = 30  # seconds that an unused connection is kept
_CONNECT = 10  # seconds to open one
# Seconds by default: to repeat a request to a server that has replied before, and to reach
# a server that never has, which is probably not running.
_PATIENCE = 120.0
_UNREACHED = 3.0
_SHOWN = 12  # differences in an error


class ServerLost(ConnectionError):
    """A reward server that does not answer, or stays full, in time."""


class OtherReward(RuntimeError):
    """A server whose reward is not the expected one, or has changed."""


class ServerError(RuntimeError):
    """The server rejects or fails a request, for another reason than its samples."""


class _Transient(Exception):
    """An attempt that may be repeated, after the seconds requested by the server, if any."""

    def __init__(self, reason: str, wait: float | None = None, reached: bool = True) -> None:
        super().__init__(reason)
        self.wait = wait
        self.reached = reached


class ServerConnection:
    """Requests to one server, over persistent connections; arguments of `RemoteReward`.

    A pickled or forked copy opens new connections, and expects the reward that the original was
    connected to.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = 600.0,
        patience: float | None = None,
        expect: Mapping[str, Any] | None = None,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("patience", patience)):
            positive(name, seconds)
        self.url = check_address(url, "http://127.0.0.1:8700", "url")
        self.token = token
        self.timeout = timeout
        self.patience = patience
        self.expect = expect
        self._description: dict[str, Any] | None = None
        self._clients: dict[int, httpx2.Client] = {}  # by process

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings and the description, without connections."""
        return {**vars(self), "_clients": {}}

    @property
    def description(self) -> dict[str, Any]:
        """Description of the served reward; connects at the first use."""
        return self.connect() if self._description is None else self._description

    def connect(self) -> dict[str, Any]:
        """Wait until the server is ready and return the description of its reward; see `post`."""
        found = self._send("GET", "/reward")
        if not isinstance(found, dict) or found.get("protocol") != PROTOCOL:
            spoken = found.get("protocol") if isinstance(found, dict) else None
            raise ServerError(
                f"{self.url} speaks protocol {spoken}, this client {PROTOCOL}. Install the same "
                "version of ctrlreward on both sides."
            )
        for expected, relation in ((self.expect, "expected"), (self._description, "connected to")):
            if expected is not None and (lines := differences(expected, found)):
                raise OtherReward(_unlike(self.url, relation, lines))
        self._description = found
        return found

    def post(self, path: str, body: object) -> Any:
        """Send a body and return the value of the reply."""
        expected = self.description["fingerprint_id"]
        return self._send("POST", path, dumps(body), expected)

    def close(self) -> None:
        """Close the connections of this process; a later request opens new ones."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _client(self) -> httpx2.Client:
        """Return the client of this process: after a fork, not the parent's connections."""
        client = self._clients.get(os.getpid())
        if client is None:
            token, address = self.token or os.environ.get(TOKEN_VARIABLE), urlsplit(self.url)
            if token:
                check_token(token)
            made = httpx2.Client(
                headers={CLIENT_HEADER: uuid.uuid4().hex}
                | ({"Authorization": f"Bearer {token}"} if token else {}),
                timeout=httpx2.Timeout(self.timeout, connect=_CONNECT),
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE),
                trust_env=address.hostname not in LOOPBACK,
                # Reading the machine's certificates takes longer than a request. Without them, no
                # HTTPS server is trusted.
                verify=True if address.scheme == "https" else SSLContext(PROTOCOL_TLS_CLIENT),
            )
            client = self._clients.setdefault(os.getpid(), made)
        return client

    def _send(
        self, method: str, path: str, content: bytes | None = None, expected: str | None = None
    ) -> Any:
        """Return the value of a reply with the expected fingerprint; repeat until patience ends."""
        started, number = time.monotonic(), 0
        while True:
            try:
                return self._attempt(method, path, content, expected)
            except _Transient as error:
                tried = time.monotonic() - started
                unreached = not error.reached and self._description is None
                patience = self.patience or (_UNREACHED if unreached else _PATIENCE)
                pause = error.wait or _backoff(number)
                if tried + pause >= patience:
                    raise self._lost(error, unreached, tried) from error
                if number == 0:
                    log.warning("waiting for %s: %s", self.url, error)
            time.sleep(pause)
            number += 1

    def _lost(self, error: _Transient, unreached: bool, tried: float) -> ServerLost:
        if unreached and self.patience is None:
            return ServerLost(
                f"there is no reward server at {self.url}: {error}; tried for {tried:.0f} s. Start "
                "one with `ctrlreward serve reward.yaml`, or set patience=SECONDS to wait for it."
            )
        return ServerLost(
            f"the reward server {self.url} was lost: {error}; tried for {tried:.0f} s of patience "
            f"= {self.patience or _PATIENCE:g}. Start it with `ctrlreward serve`, correct the URL, "
            "or increase patience."
        )

    def _attempt(self, method: str, path: str, content: bytes | None, expected: str | None) -> Any:
        headers = {"Content-Type": "application/json"} if content is not None else None
        try:
            response = self._client().request(
                method, self.url + path, content=content, headers=headers
            )
        except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:  # may be scored already
            raise ServerLost(
                f"the reward server {self.url} did not answer {path} in timeout = "
                f"{self.timeout:g} s. Set a longer timeout or smaller batches."
            ) from error
        except httpx2.RequestError as error:
            raise _Transient(f"{type(error).__name__}: {error}", reached=False) from error
        found = response.headers.get(FINGERPRINT_HEADER)
        if expected not in (None, found) and (found is not None or response.is_success):
            self.connect()  # raises with the difference
            raise OtherReward(_unlike(self.url, "connected to", [f"fingerprint_id: found {found}"]))
        if response.status_code in (429, 503) or _lost_behind_proxy(response, expected):
            raise _Transient(_message(response), retry_after(response))
        if response.status_code == 422:
            raise ValueError(_message(response))
        if response.status_code == 401:
            raise ServerError(f"the reward server {self.url} refuses the request. Pass its token.")
        if not response.is_success:
            status = f"{method} {path}: {response.status_code}"
            raise ServerError(f"the reward server {self.url}, {status}, {_message(response)}")
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError) as error:
            raise ServerError(
                f"{self.url} is not a reward server: malformed JSON ({error})"
            ) from None


def _lost_behind_proxy(response: httpx2.Response, expected: str | None) -> bool:
    """Return True for the error of a proxy, such as Ray Serve's, whose server has ended.

    A reply of the server has a fingerprint; before it has one, an error has a `detail`. Once it
    has replied, a 404 means that the proxy does not have the route now.
    """
    lost = (500, 502, 504) if expected is None else (404, 500, 502, 504)
    from_proxy = response.status_code in lost and FINGERPRINT_HEADER not in response.headers
    return from_proxy and _detail(response) is None


# Not training's random generator, whose next number would depend on the network.
_random = random.SystemRandom()


def _backoff(number: int) -> float:
    """Return the seconds after a failed attempt, 0.1 and twice as many each time, with jitter."""
    return min(0.1 * 2.0 ** min(number, 7), 10.0) * _random.uniform(0.5, 1.0)


def _detail(response: httpx2.Response) -> str | None:
    """Return the `detail` of our errors, a string or a list with `msg`; None for others'."""
    try:
        detail = json.loads(response.content)["detail"]
        return detail if isinstance(detail, str) else "; ".join(item["msg"] for item in detail)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _message(response: httpx2.Response) -> str:
    return _detail(response) or f"{response.status_code} {response.reason_phrase}"


def _unlike(url: str, relation: str, lines: list[str]) -> str:
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    listed = "\n".join(f"  {line}" for line in (*lines[:_SHOWN], *more))
    return f"the reward at {url} is not the one {relation}:\n{listed}"


def url_of(host: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
