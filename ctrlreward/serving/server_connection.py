"""Connection of a client to a reward server: retries, and the check of the served reward."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any
from urllib.parse import urlsplit

import httpx2
import tenacity

from ctrlreward.arguments import positive
from ctrlreward.samples import Samples, records_of
from ctrlreward.scorers.model_servers import LOOPBACK, check_address
from ctrlreward.serving.contract import PROTOCOL, ScoreReply, dumps
from ctrlreward.serving.description import differences

log = logging.getLogger(__name__)

# Token of a server and its clients, so that it is not in a command line, YAML or checkpoint.
TOKEN_VARIABLE = "CTRLREWARD_TOKEN"

_IDLE = 30  # seconds that an unused connection is kept
_CONNECT = 10  # seconds to open one
# Seconds by default: to repeat a request to a server that has replied before, and to reach
# a server that never has, which is probably not running.
_PATIENCE = 120.0
_UNREACHED = 3.0
_BACKOFF = tenacity.wait_exponential(multiplier=0.1, max=10)


class ServerLost(ConnectionError):
    """A reward server that does not answer, or stays full, in time."""


class OtherReward(RuntimeError):
    """A server whose reward is not the expected one, or has changed."""


class ServerError(RuntimeError):
    """The server rejects or fails a request, for another reason than its samples."""


class _Transient(Exception):
    """An attempt that may be repeated, after the seconds that the server asks for, if any."""

    def __init__(self, reason: str, wait: float = 0.0, reached: bool = True) -> None:
        super().__init__(reason)
        self.wait, self.reached = wait, reached


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
        """Wait until the server is ready and return the description of its reward."""
        found = self._send("GET", "/ready")
        if found == {"status": "ready"}:
            raise ServerError(f"the reward server {self.url} needs its token")
        spoken = found.get("protocol") if isinstance(found, dict) else None
        if spoken != PROTOCOL:
            raise ServerError(
                f"{self.url} speaks protocol {spoken}, this client {PROTOCOL}. Install the same "
                "version of ctrlreward on both sides."
            )
        for expected, relation in ((self.expect, "expected"), (self._description, "connected to")):
            if expected is not None and (lines := differences(expected, found)):
                listed = "\n  ".join(lines)
                raise OtherReward(
                    f"the reward at {self.url} is not the one {relation}:\n  {listed}"
                )
        self._description = found
        return found

    def score(self, samples: Samples) -> ScoreReply:
        """Return the rewards of the reward that this is connected to."""
        expected = self.description["fingerprint_id"]
        body = dumps({"samples": records_of(samples)})
        reply = ScoreReply.model_validate(self._send("POST", "/score", body))
        if reply.fingerprint != expected:
            self.connect()  # raises with the difference
            raise OtherReward(
                f"a reply of {self.url} is of the reward {reply.fingerprint}, not of {expected}"
            )
        return reply

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
                headers={"Authorization": f"Bearer {token}"} if token else None,
                timeout=httpx2.Timeout(self.timeout, connect=_CONNECT),
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE),
                trust_env=address.hostname not in LOOPBACK,
                # Reading the machine's certificates takes longer than a request. Without them, no
                # HTTPS server is trusted.
                verify=True if address.scheme == "https" else SSLContext(PROTOCOL_TLS_CLIENT),
            )
            client = self._clients.setdefault(os.getpid(), made)
        return client

    def _send(self, method: str, path: str, content: bytes | None = None) -> Any:
        """Return the value of a reply; repeat while it is transient, until patience ends."""

        def pause(state: tenacity.RetryCallState) -> float:
            return _error_of(state).wait or _BACKOFF(state)

        def ends(state: tenacity.RetryCallState) -> bool:
            unreached = not _error_of(state).reached and self._description is None
            patience = self.patience or (_UNREACHED if unreached else _PATIENCE)
            return tenacity.stop_before_delay(patience)(state)

        def tell(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == 1:
                log.warning("waiting for %s: %s", self.url, _error_of(state))

        transient = tenacity.retry_if_exception_type(_Transient)
        retrying = tenacity.Retrying(
            retry=transient, wait=pause, stop=ends, before_sleep=tell, reraise=True
        )
        try:
            return retrying(self._attempt, method, path, content)
        except _Transient as error:
            raise ServerLost(
                f"the reward server {self.url} was lost: {error}. Start it with `ctrlreward serve "
                "reward.yaml`, correct the URL, or set a longer patience."
            ) from error

    def _attempt(self, method: str, path: str, content: bytes | None) -> Any:
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
        try:
            value = json.loads(response.content)
        except (ValueError, RecursionError):
            value = None
        if response.is_success and value is not None:
            return value
        # An error without our `detail`, a string or a list with `msg`, is a proxy's, such as Ray
        # Serve's, whose server has ended.
        detail = value.get("detail") if isinstance(value, dict) else None
        if isinstance(detail, list):
            detail = "; ".join(str(item.get("msg")) for item in detail if isinstance(item, dict))
        status = response.status_code
        message = detail or f"{status} {response.reason_phrase}"
        lost = (404, 500, 502, 504) if self._description else (500, 502, 504)
        if status == 503 or (status in lost and detail is None):
            wait = 0.0
            with suppress(ValueError):
                wait = max(0.0, float(response.headers.get("Retry-After", "")))
            raise _Transient(message, wait)
        if status == 422:
            raise ValueError(message)
        if response.is_success:
            message = "its reply is not JSON"
        raise ServerError(f"the reward server {self.url}, {method} {path}: {status}, {message}")


def check_token(token: str) -> None:
    """Raise a ValueError if a header can't carry a token."""
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("the token must be ASCII letters and digits, and not empty")


def _error_of(state: tenacity.RetryCallState) -> _Transient:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, _Transient)
    return error
