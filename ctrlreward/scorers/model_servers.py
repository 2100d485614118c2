"""Requests of scorers to servers of models: JSON in and out, repeated while a server is busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx2
import tenacity

from ctrlreward.progress import track_part

Item = TypeVar("Item")
Reply = TypeVar("Reply")

# Hosts of this machine, which a proxy of the environment can't reach.
LOOPBACK = {"127.0.0.1", "::1", "localhost"}

_BUSY = (429, 500, 502, 503, 504)
_UNANSWERED = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError)
_BACKOFF = tenacity.wait_exponential(multiplier=0.2, max=10)


def check_address(address: str, example: str, name: str = "address") -> str:
    """Return an address without its last slash; raise a ValueError if it is not a URL."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} must be a URL such as {example!r}, got {address!r}")
    return address.rstrip("/")


def is_local(address: str) -> bool:
    """Return True for an address of this machine, which a proxy of the environment can't reach."""
    return urlsplit(address).hostname in LOOPBACK


def api_key(variable: str | None) -> str | None:
    """Return the value of an environment variable; a ValueError if it is set to none."""
    key = os.environ.get(variable) if variable is not None else None
    if variable is not None and not key:
        raise ValueError(f"the environment variable {variable} does not contain an API key")
    return key


class Busy(ConnectionError):
    """A request that may be repeated, after `retry_after` seconds."""

    def __init__(self, words: str, retry_after: float = 0.0) -> None:
        super().__init__(words)
        self.retry_after = retry_after


class ModelServer(NamedTuple):
    """Connection to a server, by its name in errors; `retrying` repeats a call that is `Busy`."""

    name: str
    address: str
    client: httpx2.Client
    retrying: tenacity.Retrying

    def post(self, route: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the reply to one request; a ConnectionError if there is none."""
        try:
            response = self.client.post(f"{self.address}{route}", json=body)
        except httpx2.HTTPError as error:
            repeatable = isinstance(error, _UNANSWERED)
            raise (Busy if repeatable else ConnectionError)(
                f"{self.name} does not answer: {type(error).__name__}: {error}"
            ) from error
        if not response.is_success:
            words = f"{self.name}: {response.status_code}, {response.text[:200]}"
            if response.status_code in _BUSY:
                raise Busy(words, retry_after(response) or 0.0)
            raise ConnectionError(words)
        try:
            return response.json()
        except ValueError:
            raise ConnectionError(
                f"{self.name}: the reply is not JSON: {response.text[:200]}"
            ) from None


def _pause(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait before the next try."""
    error = state.outcome.exception() if state.outcome is not None else None
    return max(_BACKOFF(state), error.retry_after if isinstance(error, Busy) else 0.0)


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of the header Retry-After, a number or a date; None without either."""
    given = response.headers.get("Retry-After", "")
    with suppress(ValueError):
        return max(0.0, float(given))
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    return None


@contextmanager
def connected(
    name: str, address: str, key_variable: str | None, timeout: float, stop: Any
) -> Iterator[ModelServer]:
    """Yield a connection; a ValueError if the environment variable does not contain a key.

    `stop` of tenacity says when to stop repeating a request. The pauses double up to 10 seconds,
    and are at least the server's `Retry-After`.
    """
    key = api_key(key_variable)
    retry = tenacity.retry_if_exception_type(Busy)
    retrying = tenacity.Retrying(retry=retry, stop=stop, wait=_pause, reraise=True)
    with httpx2.Client(
        headers={"Authorization": f"Bearer {key}"} if key else None,
        timeout=timeout,
        trust_env=not is_local(address),
    ) as client:
        yield ModelServer(f"{name} at {address}", address, client, retrying)


def in_parallel(
    ask: Callable[[Item], Reply], items: Sequence[Item], concurrency: int
) -> list[Reply]:
    """Return the reply to each item; after an error, no further request begins."""
    replies = []
    with (
        track_part("scoring", len(items), "requests") as advance,
        ThreadPoolExecutor(concurrency) as threads,
    ):
        futures = [threads.submit(ask, item) for item in items]
        try:
            for future in futures:
                replies.append(future.result())
                advance(1)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return replies
