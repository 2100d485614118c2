"""`RemoteReward`: the reward of a server, in place of a `Reward` of this process."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import tenacity

from ctrlreward.arguments import positive
from ctrlreward.models.identity import digest
from ctrlreward.placement import Worker
from ctrlreward.reward import AnyReward, RewardBatch
from ctrlreward.samples import Samples, records_of
from ctrlreward.scorers.base import Component, Scorer, Scores, ScoreSpec, check_columns
from ctrlreward.scorers.model_servers import LOOPBACK, check_address
from ctrlreward.serving.contract import MOST_BYTES, PROTOCOL, ScoreReply, dumps

log = logging.getLogger(__name__)

# Token of a server and its clients, so that it is not in a command line, YAML or checkpoint.
TOKEN_VARIABLE = "CTRLREWARD_TOKEN"

_CONNECT = 10  # seconds to open one


class _Transient(Exception):
    """An attempt that may be repeated, after the seconds that the server asks for, if any."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class RemoteReward(AnyReward):
    """The reward that a server computes (`ctrlreward serve`); usable like a `Reward`.

    It connects at the first use, or by `load`. Copies in other processes expect the reward that the
    original was connected to. A request is repeated, with growing pauses, while the server can't be
    reached, is loading or is full (503), and a warning says so at once. A component,
    `remote["relevance"]`, asks for the whole reward.

    Args:
        url: Address of the server: `"http://127.0.0.1:8700"`.
        token: Bearer token of the server; None takes `$CTRLREWARD_TOKEN`, if set.
        expect: Reward that the server must have: the YAML file that it serves, or the
            `fingerprint_id` of `GET /ready`. None accepts any.
        timeout: Seconds to wait for one reply.
        patience: Seconds to repeat a request, and to wait for a server that starts later.

    Raises:
        ValueError: The URL is not one of HTTP, or a number is not positive.
        OSError: The file does not exist.
        ConnectionError: At the first use or later: the server does not answer in time.
        RuntimeError: Likewise: the server has another reward, than expected or before, or it
            rejects or fails a request for another reason than its samples.

    Examples:
        >>> RemoteReward("http://127.0.0.1:8700/").url
        'http://127.0.0.1:8700'
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        expect: str | PathLike[str] | None = None,
        timeout: float = 600.0,
        patience: float = 120.0,
    ) -> None:
        self.url = check_address(url, "http://127.0.0.1:8700", "url")
        self.token = token
        self.timeout = positive("timeout", timeout)
        self.patience = positive("patience", patience)
        # Entries of the description that the server must have.
        self._expected = {} if expect is None else {"fingerprint_id": _fingerprint(str(expect))}
        self._description: dict[str, Any] | None = None
        self._clients: dict[int, httpx2.Client] = {}  # by process: a fork must not use another's
        self._scorers: dict[tuple[bool, bool], RemoteScorer] = {}
        self._worker = Worker()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_clients": {}}

    @property
    def description(self) -> dict[str, Any]:
        """Description of the served reward, as returned by `GET /ready`."""
        if self._description is None:
            self.load()
        assert self._description is not None
        return self._description

    @property
    def components(self) -> dict[str, Component]:  # type: ignore[override]  # read-only
        """The components by name, scored by the server; components of one kind share a scorer."""
        components = {}
        for name, c in self.description["components"].items():
            kind = c["pointwise"], c["of_groups"]
            scorer = self._scorers.setdefault(kind, RemoteScorer(self, *kind))
            components[name] = Component(scorer, name)
        return components

    @property
    def derived(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.description["derived"])

    @property
    def given(self) -> dict[str, tuple[str, float]]:  # type: ignore[override]
        return {name: tuple(each) for name, each in self.description["given"].items()}

    @property
    def weights(self) -> dict[str, float] | None:  # type: ignore[override]
        weights: dict[str, float] | None = self.description["weights"]
        return weights

    def load(self) -> None:
        """Wait until the server is ready, and check that it has the expected reward."""
        found = self._send("GET", "/ready")
        if found == {"status": "ready"}:
            raise RuntimeError(f"the reward server {self.url} needs its token")
        spoken = found.get("protocol") if isinstance(found, dict) else None
        if spoken != PROTOCOL:
            raise RuntimeError(f"{self.url} speaks protocol {spoken}, this client {PROTOCOL}")
        for expected in (self._expected, self._description or {}):
            for key, value in expected.items():
                if found[key] != value:
                    raise RuntimeError(f"{self.url}: {key} must be {value}, is {found[key]}")
        self._description = found

    def release(self) -> None:
        """End the background thread and close the connections; a later call opens new ones."""
        self._worker.close(cancel=True)
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _score(self, samples: Samples) -> RewardBatch:
        """Return the rewards that the server computed; `seconds` is the duration of its scoring."""
        check_columns(self.components, samples)
        expected = self.description["fingerprint_id"]
        body = dumps({"samples": records_of(samples)})
        half = len(samples) // 2
        # Of components of several samples, and of a callable that may be, all are one request.
        alone = all(c["pointwise"] for c in self.description["components"].values())
        alone &= self.description["aggregate"] != "custom"
        if len(body) > MOST_BYTES and alone and half:
            parts = [self._score(samples[:half]), self._score(samples[half:])]
            return replace(RewardBatch.concat(parts), seconds=sum(p.seconds for p in parts))
        reply = ScoreReply.model_validate(self._send("POST", "/score", body))
        if reply.fingerprint != expected:
            self.load()  # raises with the difference
            raise RuntimeError(f"{self.url} replied by {reply.fingerprint}, not by {expected}")
        return reply.to_batch([*self.components, *self.derived], len(samples))

    def _send(self, method: str, path: str, content: bytes | None = None) -> Any:
        """Return the value of a reply; repeat while it is transient, until patience ends."""
        backoff = tenacity.wait_exponential(multiplier=0.1, max=10)

        def pause(state: tenacity.RetryCallState) -> float:
            error: Any = state.outcome.exception() if state.outcome else None
            if state.attempt_number == 1:
                log.warning("waiting up to %g s for %s: %s", self.patience, self.url, error)
            return error.wait or backoff(state)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            wait=pause,
            stop=tenacity.stop_before_delay(self.patience),
            reraise=True,
        )
        try:
            return retrying(self._attempt, method, path, content)
        except _Transient as error:
            state = "was not ready" if self._description is None else "was lost"
            raise ConnectionError(
                f"the reward server {self.url} {state}: {error}. Start it with `ctrlreward serve`"
            ) from error

    def _attempt(self, method: str, path: str, content: bytes | None) -> Any:
        headers = {"Content-Type": "application/json"} if content is not None else None
        try:
            response = self._client().request(
                method, self.url + path, content=content, headers=headers
            )
        except (httpx2.ReadTimeout, httpx2.WriteTimeout) as error:  # may be scored already
            raise ConnectionError(
                f"{self.url}{path} did not answer in {self.timeout:g} s: set a longer timeout"
            ) from error
        except httpx2.RequestError as error:
            message = f"{type(error).__name__}: {error}".rstrip(".")
            raise _Transient(message) from error
        try:
            value = json.loads(response.content)
        except (ValueError, RecursionError):
            value = None
        if response.is_success and value is not None:
            return value
        # An error without our `detail` is a proxy's, such as Ray Serve's, whose server has ended.
        detail = value.get("detail") if isinstance(value, dict) else None
        status = response.status_code
        message = detail or f"{status} {response.reason_phrase}"
        if status == 503 or (status in (404, 500, 502, 504) and detail is None):
            wait = 0.0
            with suppress(ValueError):
                wait = max(0.0, float(response.headers.get("Retry-After", "")))
            raise _Transient(message, wait)
        if status == 422:
            raise ValueError(message)
        raise RuntimeError(f"{method} {self.url}{path} was answered by {status}, {message}")

    def _client(self) -> httpx2.Client:
        """Return the client of this process: after a fork, not the parent's connections."""
        if os.getpid() not in self._clients:
            token, address = self.token or os.environ.get(TOKEN_VARIABLE), urlsplit(self.url)
            if token:
                check_token(token)
            client = httpx2.Client(
                headers={"Authorization": f"Bearer {token}"} if token else None,
                timeout=httpx2.Timeout(self.timeout, connect=_CONNECT),
                trust_env=address.hostname not in LOOPBACK,
            )
            self._clients.setdefault(os.getpid(), client)
        return self._clients[os.getpid()]


class RemoteScorer(Scorer):
    """Components of one kind of a served reward, without a local device."""

    scores_empty = True  # if they do on the server

    def __init__(self, reward: RemoteReward, pointwise: bool, of_groups: bool) -> None:
        self.reward = reward
        self.pointwise, self.of_groups = pointwise, of_groups

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            name: ScoreSpec(
                c["higher_is_better"],
                (-math.inf if low is None else low, math.inf if high is None else high),
            )
            for name, c in self.reward.description["components"].items()
            if (c["pointwise"], c["of_groups"]) == (self.pointwise, self.of_groups)
            for low, high in [c["range"]]
        }

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        components = self.reward.description["components"].values()
        return [
            *dict.fromkeys(column for each in components for column in each["required_columns"])
        ]

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        batch = self.reward(samples)
        return {name: batch.components[name] for name in self.specs}


def check_token(token: str) -> None:
    """Raise a ValueError if a header can't carry a token."""
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("the token must be ASCII letters and digits, and not empty")


def _fingerprint(expected: str) -> str:
    """Return the digest that is given, or a YAML file's."""
    if re.fullmatch("[0-9a-f]{64}", expected):
        return expected
    from ctrlreward.command_line.config_files import read_reward

    return digest(read_reward(Path(expected)))
