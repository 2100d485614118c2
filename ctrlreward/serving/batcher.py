"""Batches of the server: requests of all clients, scored on one thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from fastapi import HTTPException

from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import score
from ctrlreward.serving.serving_metrics import ServingMetrics

log = logging.getLogger(__name__)

State: TypeAlias = Literal["loading", "ready", "failed", "draining"]

# More than any model reads. A longer text would hold up all clients while it is tokenized.
MOST_CHARACTERS = 2**20

_MERGED = 256  # most samples of several requests in one batch; a larger request is its own batch


@dataclass(eq=False)
class _Request:
    samples: Samples
    result: asyncio.Future[RewardBatch]
    arrived: float = field(default_factory=time.perf_counter)


class Batcher:
    """Requests of all clients, scored in batches on one thread, in the order of their arrival.

    While the thread scores, requests accumulate; those with equal columns are one batch. A request
    beyond `most` waiting ones is refused.
    """

    def __init__(self, reward: Reward, most: int = 4096) -> None:
        self.reward = reward
        self.most = most
        self.state: State = "loading"
        self.metrics = ServingMetrics(lambda: len(self.waiting) + len(self.scoring))
        self.waiting: list[_Request] = []
        self.scoring: list[_Request] = []
        self._reason = ""
        self._thread = ThreadPoolExecutor(1, "ctrlreward-serving")
        self._runner: asyncio.Task[None] | None = None

    async def load(self, load: Callable[[], object] | None = None) -> None:
        """Load the models on the scoring thread; then requests are accepted."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, load or self.reward.load)
            if self.state == "loading":
                self.state = "ready"
        except Exception as error:
            self.state, self._reason = "failed", f"{type(error).__name__}: {error}"
            log.error("loading failed: %s", self._reason)

    def check_ready(self) -> None:
        """Raise an HTTPException unless requests are accepted."""
        if self.state == "failed":  # retrying does not help
            raise HTTPException(500, f"the server is not ready: failed: {self._reason}")
        if self.state != "ready":
            raise _refused(f"the server is not ready: {self.state}")

    async def score(self, samples: Samples) -> RewardBatch:
        """Return the rewards of one request; an HTTPException if it is refused or fails."""
        if self.state != "ready":
            self.check_ready()
        for name, column in samples.columns().items():
            for i, value in enumerate(column):
                if sum(map(len, [value] if isinstance(value, str) else value)) > MOST_CHARACTERS:
                    raise HTTPException(422, f"{name}[{i}] exceeds {MOST_CHARACTERS} characters")
        if len(self.waiting) >= self.most:
            raise _refused(f"{self.most} requests are waiting")
        request = _Request(samples, asyncio.get_running_loop().create_future())
        self.waiting.append(request)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await request.result

    async def drain(self) -> None:
        """Refuse new requests, and wait until the accepted ones are finished or cancelled."""
        self.state = "failed" if self.state == "failed" else "draining"
        while any(not request.result.done() for request in (*self.waiting, *self.scoring)):
            await asyncio.sleep(0.01)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        """Score batches until nothing waits: the first request, and those that merge with it."""
        loop = asyncio.get_running_loop()
        while self.waiting:
            columns, size = self.waiting[0].samples.columns().keys(), 0
            for request in self.waiting:
                if request.samples.columns().keys() == columns:
                    size += len(request.samples)
                    if self.scoring and size > _MERGED:
                        break
                    self.scoring.append(request)
            self.waiting = [each for each in self.waiting if each not in self.scoring]
            started, asked = time.perf_counter(), [each.samples for each in self.scoring]
            results: Sequence[RewardBatch | HTTPException]
            try:
                results = await loop.run_in_executor(
                    self._thread, score_requests, self.reward, asked
                )
                waits = [started - request.arrived for request in self.scoring]
                scored = [each for each in results if isinstance(each, RewardBatch)]
                seconds = time.perf_counter() - started
                self.metrics.batch(scored, waits, sum(map(len, asked)), seconds)
            except Exception as error:  # a request that is not answered waits forever
                results = [_failed(error) for _ in asked]
            for request, result in zip(self.scoring, results, strict=True):
                if request.result.done():  # cancelled
                    continue
                if isinstance(result, HTTPException):
                    request.result.set_exception(result)
                else:
                    request.result.set_result(result)
            self.scoring = []


def score_requests(
    reward: Reward, requests: Sequence[Samples]
) -> list[RewardBatch | HTTPException]:
    """Return rewards or error of requests with equal columns, each as if it were alone.

    Pointwise components are scored in one call. If that fails, each request is scored by itself.
    """
    started = time.perf_counter()
    alone = len(requests) == 1
    try:
        components, asked = reward.components, [reward.as_read(each) for each in requests]
        merged = {name: c for name, c in components.items() if alone or c.scorer.pointwise}
        others = {name: c for name, c in components.items() if name not in merged}
        ends = np.cumsum([len(samples) for samples in asked])
        if not ends[-1]:
            none = dict.fromkeys(components, np.empty(0))
            return [reward.combine(none, 0.0, samples) for samples in asked]
        scores = score(merged, Samples.concat(asked)).warned() if merged else {}
        rows = []
        for samples, end in zip(asked, ends, strict=True):
            own = {name: values[end - len(samples) : end] for name, values in scores.items()}
            own |= score(others, samples).warned() if others else {}
            rows.append({name: own[name] for name in components})
        seconds = time.perf_counter() - started
        return [
            reward.combine(row, seconds, samples) for row, samples in zip(rows, asked, strict=True)
        ]
    except Exception as error:
        if not alone:
            return [score_requests(reward, [samples])[0] for samples in requests]
        if isinstance(error, ValueError | TypeError):  # about the samples
            return [HTTPException(422, str(error))]
        return [_failed(error)]


def _failed(error: Exception) -> HTTPException:
    return HTTPException(500, f"{type(error).__name__}: {error}")


def _refused(message: str) -> HTTPException:
    return HTTPException(503, message, {"Retry-After": "1"})
