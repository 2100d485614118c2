"""A call that tests send to spawned processes, which can import this module by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any


def run_coroutine(function: Callable[..., Awaitable[Any]], given: Mapping[str, Any]) -> Any:
    """Call a coroutine function with keywords in an event loop of its own."""

    async def call() -> Any:
        return await function(**given)

    return asyncio.run(call())
