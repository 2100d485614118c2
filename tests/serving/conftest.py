"""A reward of scorers that count letters, and a real server for it in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import uvicorn
from fakes import Letters, Rank
from fastapi import FastAPI

from ctrlreward import Reward
from ctrlreward.serving.application import create_app


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def reward(letters: Letters) -> Reward:
    return Reward({"letters": (letters["letters"], 0.3), "length": (letters["length"], 0.1)})


@pytest.fixture
def group_reward(letters: Letters) -> Reward:
    return Reward({"letters": letters["letters"], "rank": Rank()})


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds; fail if it never does."""
    pause = threading.Event()
    for _ in range(int(seconds * 100)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("the condition never held")


@dataclass
class LiveServer:
    """A server in a thread: its address, application, and a client."""

    url: str
    app: FastAPI
    client: httpx2.Client
    server: uvicorn.Server

    wait_until = staticmethod(wait_for)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


@contextmanager
def running(app: FastAPI, wait: bool = True) -> Iterator[LiveServer]:
    """Run an application by uvicorn in a thread on a free port."""
    options: dict[str, Any] = {"log_level": "info", "log_config": None, "http": "h11"}
    config = uvicorn.Config(app, port=0, lifespan="on", **options)
    for name in ("uvicorn", "uvicorn.access"):  # a server of the command has its own handlers
        logging.getLogger(name).propagate = True
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    wait_for(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        with httpx2.Client(base_url=url, timeout=60, verify=False) as client:
            wait_for(lambda: client.get("/ready").status_code == 200 or not wait)
            yield LiveServer(url, app, client, server)
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def serve_app() -> Iterator[Callable[..., LiveServer]]:
    """A function that serves an application; all servers end with the test."""
    with ExitStack() as servers:
        yield lambda app, wait=True: servers.enter_context(running(app, wait))


@pytest.fixture
def live_server(serve_app: Callable[..., LiveServer]) -> Callable[..., LiveServer]:
    """A function that serves a reward."""
    return lambda reward, wait=True, **options: serve_app(create_app(reward, **options), wait)
