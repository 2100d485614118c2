"""A reward of scorers that count letters, and a real server for it in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx2
import numpy as np
import pytest
import uvicorn
from fastapi import APIRouter, FastAPI

from ctrlreward import Reward, Samples
from ctrlreward.scorers import CorpusFold, Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores
from ctrlreward.serving.application import ServeOptions, create_app

UP = ScoreSpec(higher_is_better=True, range=(0.0, np.inf))


class Letters(Scorer):
    """Letters of a text by its label; an unknown label raises, an empty text fails.

    The text "hold" waits until the test lets it go.
    """

    specs: ClassVar = {"letters": UP, "length": UP}

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.held = threading.Event()
        self.go = threading.Event()
        self.go.set()

    @property
    def corpus_folds(self) -> dict[str, CorpusFold]:
        return {"letters": CorpusFold(("letters", "length"), _share)}

    def required_columns(self, names: Any = None) -> dict[str, str]:
        return {"labels": "Letters"}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.calls.append(tuple(samples.texts))
        if "hold" in samples.texts:
            self.held.set()
            assert self.go.wait(60)
        if "broken" in samples.texts:
            raise RuntimeError("no memory for 'broken'")
        assert samples.labels is not None
        for i, label in enumerate(samples.labels):
            if len(label) != 1:
                raise ValueError(f"labels[{i}] = {label!r} is unknown: give one letter")
        pairs = zip(samples.texts, samples.labels, strict=True)
        counts = [text.count(label) if text else np.nan for text, label in pairs]
        lengths = [len(text) or np.nan for text in samples.texts]
        return {"letters": np.array(counts, float), "length": np.array(lengths, float)}


class Rank(Scorer):
    """Share of the group's samples that are shorter."""

    specs: ClassVar = {"rank": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}
    pointwise = False

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        lengths = np.array([len(text) for text in samples.texts])
        return {"rank": (lengths[:, None] > lengths).mean(axis=1)}


def _share(letters: Scores, lengths: Scores) -> float:
    return float(np.nansum(letters) / np.nansum(lengths))


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def reward(letters: Letters) -> Reward:
    return Reward({"letters": (letters["letters"], 0.3), "length": (letters["length"], 0.1)})


@pytest.fixture
def group_reward(letters: Letters) -> Reward:
    return Reward({"letters": letters["letters"], "rank": Rank()})


@dataclass
class LiveServer:
    """A server in a thread: its address, application, and a client."""

    url: str
    app: FastAPI
    client: httpx2.Client
    server: uvicorn.Server

    @staticmethod
    def wait_until(condition: Callable[[], bool]) -> None:
        wait_for(condition)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


@contextmanager
def running(app: FastAPI, wait: bool = True) -> Iterator[LiveServer]:
    """Run an application by uvicorn in a thread on a free port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    config = uvicorn.Config(app, log_level="info", lifespan="on", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx2.Client(base_url=url, timeout=60) as client:
            # The first request waits in the listener until the server accepts it.
            wait_for(lambda: client.get("/ready").status_code == 200 or not wait)
            yield LiveServer(url, app, client, server)
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds; fail if it never does."""
    pause = threading.Event()
    for _ in range(int(seconds * 100)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("the condition never held")


@pytest.fixture
def live_server() -> Iterator[Callable[..., LiveServer]]:
    """A function that serves a reward; all servers end with the test."""
    with ExitStack() as servers:

        def start(
            reward: Reward,
            options: ServeOptions = ServeOptions(),  # noqa: B008 — it is frozen
            routers: tuple[APIRouter, ...] = (),
            wait: bool = True,
        ) -> LiveServer:
            app = create_app(reward, options, routers)
            return servers.enter_context(running(app, wait))

        yield start
