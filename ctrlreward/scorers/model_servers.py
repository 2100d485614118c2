"""Requests of scorers to servers of models, by the client of the package openai."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ctrlreward.extras import import_extra

Item = TypeVar("Item")
Reply = TypeVar("Reply")

# Hosts of this machine, which a proxy of the environment can't reach.
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def check_address(address: str, example: str, name: str = "address") -> str:
    """Return an address without its last slash; raise a ValueError if it is not a URL."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} must be a URL such as {example!r}, got {address!r}")
    return address.rstrip("/")


@contextmanager
def connected(
    address: str, key_variable: str | None, timeout: float, max_retries: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield openai's client of a server, and the extra headers of its requests.

    The client repeats a request that the server is too busy for or does not answer, after the pause
    that the server asks for (Retry-After), or else up to 8 seconds.

    Raises:
        ConnectionError: The server does not answer, or rejects a request.
        ValueError: The environment variable does not contain a key.
    """
    openai: Any = import_extra("openai", "a model on a server")
    key = os.environ.get(key_variable) if key_variable is not None else None
    if key_variable is not None and not key:
        raise ValueError(f"the environment variable {key_variable} does not contain an API key")
    try:
        with openai.OpenAI(
            api_key=key or "none",  # None would read another key from the environment
            base_url=address,
            timeout=timeout,
            max_retries=max_retries,
            http_client=openai.DefaultHttpxClient(
                trust_env=urlsplit(address).hostname not in LOOPBACK
            ),
        ) as client:
            yield client, {} if key else {"Authorization": openai.Omit()}
    except openai.OpenAIError as error:
        raise ConnectionError(f"the model server at {address}: {error}") from error


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
