"""Requests of scorers to servers of models: JSON in and out, repeated while a server is busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
import tenacity

Item = TypeVar("Item")
Reply = TypeVar("Reply")

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_BUSY = (429, 500, 502, 503, 504)


def check_address(address: str, example: str) -> str:
    """Return an address without its last slash; raise a ValueError if it is not a URL."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"address must be a URL such as {example!r}, got {address!r}")
    return address.rstrip("/")


class Busy(ConnectionError):
    """A request that may be repeated."""


class ModelServer:
    """Connection to a server of a model.

    Args:
        name: What the server is, for errors: "the judge at http://127.0.0.1:8000/v1".
        address: URL, without a slash at the end.
        client: Sends the requests.
        stop: When to stop repeating a request that the server rejects temporarily.
    """

    def __init__(self, name: str, address: str, client: httpx2.Client, stop: Any) -> None:
        self.name = name
        self.address = address
        self._client = client
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Busy),
            stop=stop,
            wait=tenacity.wait_exponential(multiplier=0.2, max=10),
            reraise=True,
        )

    def post(self, route: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the reply.

        Raises:
            ConnectionError: The server does not answer, or answers with an error or without JSON.
        """
        return self._retrying(self._post, f"{self.address}{route}", body)

    def _post(self, url: str, body: Mapping[str, Any]) -> Any:
        try:
            response = self._client.post(url, json=body)
        except (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
            raise Busy(f"{self.name} does not answer: {type(error).__name__}: {error}") from error
        except httpx2.HTTPError as error:
            raise ConnectionError(
                f"{self.name} does not answer: {type(error).__name__}: {error}"
            ) from error
        if not response.is_success:
            kind = Busy if response.status_code in _BUSY else ConnectionError
            raise kind(f"{self.name}: {response.status_code}, {response.text[:200]}")
        try:
            return response.json()
        except ValueError:
            raise ConnectionError(
                f"{self.name}: the reply is not JSON: {response.text[:200]}"
            ) from None


@contextmanager
def connected(
    name: str, address: str, key_variable: str | None, timeout: float, stop: Any
) -> Iterator[ModelServer]:
    """Yield a connection; a key is read from an environment variable.

    Raises:
        ValueError: The variable does not contain a key.
    """
    key = os.environ.get(key_variable) if key_variable is not None else None
    if key_variable is not None and not key:
        raise ValueError(f"the environment variable {key_variable} does not contain an API key")
    with httpx2.Client(
        headers={"Authorization": f"Bearer {key}"} if key else None,
        timeout=timeout,
        # A proxy of the environment can't reach a server of this machine.
        trust_env=urlsplit(address).hostname not in _LOOPBACK,
    ) as client:
        yield ModelServer(f"{name} at {address}", address, client, stop)


def in_parallel(
    ask: Callable[[Item], Reply], items: Sequence[Item], concurrency: int
) -> list[Reply]:
    """Return the reply to each item; after an error, no further request begins."""
    with ThreadPoolExecutor(concurrency) as threads:
        futures = [threads.submit(ask, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
