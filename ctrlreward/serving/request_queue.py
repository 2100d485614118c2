"""Queue of the server: requests of all clients, scored in batches on one thread."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from ctrlreward.arguments import did_you_mean
from ctrlreward.items import items_named
from ctrlreward.placement import ScoringTimeout, Worker
from ctrlreward.reward import Reward
from ctrlreward.samples import MissingColumn, Samples
from ctrlreward.scorers.base import Component, Scores, check_columns, score
from ctrlreward.serving.contract import Refusal, ScoredRequest, failure, rejection
from ctrlreward.serving.description import scorers_by_id
from ctrlreward.serving.limits import QueueOptions, client
from ctrlreward.serving.serving_metrics import ServingMetrics

State: TypeAlias = Literal["loading", "ready", "failed", "draining"]

_LONGEST_RETRY = 60  # seconds

# Errors about the samples; any other error is the scorer's.
_ABOUT_SAMPLES = (ValueError, TypeError)

# Single samples that may fail with errors of the scorer before it is considered broken.
_BROKEN_AFTER = 4

# Turns scores, the errors of samples and the seconds of scoring into the result of a request.
Finish: TypeAlias = Callable[[dict[str, Scores], dict[int, str], float], Any]


@dataclass(eq=False)
class WaitingRequest:
    """One request in the queue."""

    samples: Samples
    components: Mapping[str, Component]
    merges_with: tuple[object, ...]  # requests with an equal key may share a batch
    strict: bool
    finish: Finish
    characters: int
    client: str
    result: asyncio.Future[Any]
    arrived: float = field(default_factory=time.perf_counter)


class RequestQueue:
    """Requests of all clients, scored in batches on one thread.

    While the thread scores, requests accumulate; requests with the same columns are the next batch.
    `scorers` are by id, as in the description of the reward. `left_at` is the line of a batch that
    did not end before the queue did; None if all ended.
    """

    def __init__(self, reward: Reward, options: QueueOptions) -> None:
        self.reward = reward
        self.options = options
        self.metrics = ServingMetrics(lambda: self.held_characters, lambda: self.state == "ready")
        self.state: State = "loading"
        self.scorers = scorers_by_id(reward)
        self._reason = ""
        self._waiting: list[WaitingRequest] = []
        self._scoring: list[WaitingRequest] = []
        self._served: dict[str, int] = {}  # last batch of each client that waits
        self._speed = math.inf  # characters per second of the last batches
        self._worker = Worker("ctrlreward-serving")
        self._runner: asyncio.Task[None] | None = None
        self.left_at: str | None = None

    @property
    def held_characters(self) -> int:
        """Characters that are waiting or being scored."""
        return sum(request.characters for request in (*self._waiting, *self._scoring))

    async def start(self, load: Callable[[], object] | None = None) -> None:
        """Load the models on the scoring thread, and score from then on; or fail permanently."""
        self._arrived = asyncio.Event()
        self._runner = asyncio.create_task(self._run())
        try:
            await asyncio.wrap_future(self._worker.submit(load or self.reward.load))
        except Exception as error:
            self.state, self._reason = "failed", f"{type(error).__name__}: {error}"
            raise
        if self.state == "loading":
            self.state = "ready"

    async def drain(self) -> None:
        """Reject new requests, finish accepted ones, and end the thread.

        A batch whose clients have all disconnected or timed out is left to its thread.
        """
        loading = self.state == "loading"
        self.state = "draining"
        if self._runner is not None:
            while any(not each.result.done() for each in (*self._waiting, *self._scoring)):
                await asyncio.sleep(0.01)
            if self._scoring:
                self.left_at = self._worker.abandon()
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if not loading and self.left_at is None:  # its thread ends by itself after loading
            self._worker.close()

    def check_ready(self) -> None:
        """Raise a `Refusal` unless requests are accepted."""
        if self.state == "failed":  # retrying does not help
            raise Refusal(500, f"the server is not ready: failed: {self._reason}")
        if self.state != "ready":
            raise Refusal(503, f"the server is not ready: {self.state}", retry_after=1)

    async def score(self, samples: Samples, strict: bool = False) -> ScoredRequest:
        """Score a request; if `strict`, an error for one sample fails the whole request."""

        def combined(scores: dict[str, Scores], errors: dict[int, str], seconds: float) -> Any:
            # The aggregate sees the scores of one request alone.
            return ScoredRequest(self.reward.combine(scores, seconds), errors)

        return await self._result(samples, self.reward.components, ("reward",), strict, combined)

    async def score_with(
        self, scorer_id: str, samples: Samples, names: Iterable[str]
    ) -> dict[str, Scores]:
        """Score a request with some scores of one scorer; a faulty sample fails all."""
        scorer = self.scorers[scorer_id]
        wanted = tuple(dict.fromkeys(names))
        parts = (part for fold in scorer.corpus_folds.values() for part in fold.parts)
        known = list(dict.fromkeys([*scorer.specs, *parts]))
        for i, name in enumerate(wanted):
            if name not in known:
                hint = did_you_mean(name, known, str) or f", only {', '.join(known)}"
                message = f"the scorer has no score {name!r}{hint}"
                raise Refusal(422, message, place=("names", i))
        components = {name: Component(scorer, name) for name in wanted}
        key = ("scorer", scorer_id, frozenset(wanted), *([] if scorer.pointwise else [object()]))
        return await self._result(samples, components, key, True, lambda scores, *_: scores)

    async def _result(
        self,
        samples: Samples,
        components: Mapping[str, Component],
        key: tuple[object, ...],
        strict: bool,
        finish: Finish,
    ) -> Any:
        self.check_ready()
        if not samples.texts or not components:
            return finish({name: np.empty(len(samples)) for name in components}, {}, 0.0)
        try:
            check_columns(components, samples)
        except MissingColumn as error:
            raise rejection(error, None) from None
        columns = samples.columns()
        texts = (item for column in columns.values() for item in column)
        characters = sum(len(t) if isinstance(t, str) else sum(map(len, t)) for t in texts)
        here = [*self._waiting, *self._scoring]
        held = self.held_characters
        # The burst of one client leaves room for the first request of another.
        share = 1 if any(each.client == client.get() for each in here) else 2
        above = held + characters > share * self.options.waiting_characters
        if here and (above or len(here) >= share * self.options.waiting_requests):
            seconds = min(max(math.ceil(held / self._speed), 1), _LONGEST_RETRY)
            raise Refusal(429, f"{held} characters are waiting: ask again in {seconds} s", seconds)
        request = WaitingRequest(
            samples,
            components,
            (*key, *columns),
            strict,
            finish,
            characters,
            client.get(),
            asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(request)
        self._arrived.set()
        try:
            return await request.result
        finally:
            if request in self._waiting:  # cancelled
                self._waiting.remove(request)

    async def _run(self) -> None:
        expected, ended = 0, -math.inf
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            if time.perf_counter() - ended <= self.options.window:
                await self._gather(expected)
            self._scoring = self._take()
            started = time.perf_counter()
            if self._scoring:
                await self._score_batch(self._scoring)
            ended = time.perf_counter()
            characters = sum(request.characters for request in self._scoring)
            self._speed = max(characters, 1) / max(ended - started, 1e-6)
            # Clients with a recent reply may send another request, in addition to the waiting ones.
            expected = len(self._scoring) + len(self._waiting)
            self._scoring = []

    async def _gather(self, expected: int) -> None:
        """Wait until as many requests as recently have arrived, a batch is full, or none comes."""
        while self._waiting and len(self._waiting) < expected:
            if sum(r.characters for r in self._waiting) >= self.options.batch_characters:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), self.options.window)
            except TimeoutError:
                return

    def _take(self) -> list[WaitingRequest]:
        """Remove the next batch from the queue: the first request, and others that fit with it.

        Clients take turns: the second request of one comes after the first of each, and a client
        that was served comes after those that were not.
        """
        taken: list[WaitingRequest] = []
        left = self.options.batch_characters
        own: Counter[str] = Counter()

        def turn(request: WaitingRequest) -> tuple[int, int]:
            own[request.client] += 1
            return own[request.client], self._served.get(request.client, 0)

        for request in sorted(self._waiting, key=turn):
            if taken and request.merges_with != taken[0].merges_with:
                continue
            if taken and request.characters > left:
                break
            taken.append(request)
            left -= request.characters
        self._waiting = [request for request in self._waiting if request not in taken]
        latest = max(self._served.values(), default=0) + 1
        served = self._served | dict.fromkeys((each.client for each in taken), latest)
        self._served = {each.client: served.get(each.client, 0) for each in self._waiting}
        return taken

    async def _score_batch(self, requests: list[WaitingRequest]) -> None:
        started = time.perf_counter()
        samples = sum(len(request.samples.texts) for request in requests)
        work, what = partial(_results_of, requests), partial("{} samples".format, samples)
        try:
            future = self._worker.submit(self.reward.time_limit.run, what, work)
            results = await asyncio.wrap_future(future)
        except Exception as error:
            results = [_refusal(error)] * len(requests)
            if isinstance(error, ScoringTimeout):  # its thread never releases the scorer
                self.state, self._reason = "failed", str(error)
        for request, result in zip(requests, results, strict=True):
            if request.result.done():  # its client has disconnected
                continue
            if isinstance(result, Exception):
                request.result.set_exception(result)
            else:
                request.result.set_result(result)
                if isinstance(result, ScoredRequest):
                    self.metrics.scored(len(request.samples.texts), int(result.batch.failed.sum()))
        waits = [started - request.arrived for request in requests]
        self.metrics.batch(len(requests), samples, waits, time.perf_counter() - started)


def _results_of(requests: Sequence[WaitingRequest]) -> list[Any]:
    """Return the result or the rejection of each request of a batch."""
    started = time.perf_counter()
    try:
        scores = _merged_scores(requests[0].components, [each.samples for each in requests])
    except Exception:
        return [_score_alone(request) for request in requests]
    seconds = time.perf_counter() - started
    return [_finish(each, own, {}, seconds) for each, own in zip(requests, scores, strict=True)]


def _score_alone(request: WaitingRequest) -> Any:
    """Return the result or the rejection of a request whose batch made a scorer raise."""
    started = time.perf_counter()
    if request.result.done():  # its client has disconnected
        return None
    components, samples = request.components, request.samples
    errors: dict[int, Exception] = {}
    try:
        if not request.strict:
            scores, errors = tolerant_scores(components, samples)
        else:
            try:
                scores = score(components, samples)
            except _ABOUT_SAMPLES as error:
                rejected = tolerant_scores(components, samples)[1]
                return rejection(error, min(rejected, default=None))
    except Exception as error:
        return _refusal(error)
    messages = {row: str(error) for row, error in errors.items()}
    return _finish(request, scores, messages, time.perf_counter() - started)


def _finish(
    request: WaitingRequest, scores: dict[str, Scores], errors: dict[int, str], seconds: float
) -> Any:
    try:
        return request.finish(scores, errors, seconds)
    except Exception as error:  # of the aggregate, of any type
        return failure(error)


def _refusal(error: Exception) -> Refusal:
    """Return the refusal for an error of a scorer."""
    return rejection(error, None) if isinstance(error, _ABOUT_SAMPLES) else failure(error)


def _merged_scores(
    components: Mapping[str, Component], requests: Sequence[Samples]
) -> list[dict[str, Scores]]:
    """Return the scores of requests with the same columns, pointwise ones from one call."""
    if len(requests) == 1:
        return [score(components, requests[0])]
    pointwise = {name: c for name, c in components.items() if c.scorer.pointwise}
    of_groups = {name: c for name, c in components.items() if not c.scorer.pointwise}
    merged = score(pointwise, Samples.concat(requests)) if pointwise else {}
    ends = np.cumsum([len(samples) for samples in requests])
    results = []
    for samples, end in zip(requests, ends, strict=True):
        rows = slice(end - len(samples), end)
        own = score(of_groups, samples) if of_groups else {}
        results.append(
            {name: own[name] if name in own else merged[name][rows] for name in components}
        )
    return results


def tolerant_scores(
    components: Mapping[str, Component], samples: Samples
) -> tuple[dict[str, Scores], dict[int, Exception]]:
    """Return scores by name, NaN if a sample makes a scorer raise, and these errors.

    The samples are bisected until the ones that raise are isolated. Scores that depend on other
    samples are computed on all samples that do not raise.
    """
    errors: dict[int, Exception] = {}
    pieces: list[tuple[list[int], dict[str, Scores]]] = []

    def visit(rows: list[int]) -> None:
        try:
            with items_named(lambda column, i: f"{column}[{rows[i]}]"):
                pieces.append((rows, score(components, samples[rows])))
        except Exception as error:
            if len(rows) > 1:
                visit(rows[: len(rows) // 2])
                visit(rows[len(rows) // 2 :])
                return
            errors[rows[0]] = error
            own = [e for e in errors.values() if not isinstance(e, _ABOUT_SAMPLES)]
            if not pieces and len(own) >= min(_BROKEN_AFTER, len(samples)):
                raise own[-1] from None

    visit(list(range(len(samples))))
    of_groups = {name: c for name, c in components.items() if not c.scorer.pointwise}
    if of_groups and errors and pieces:
        good = [row for row in range(len(samples)) if row not in errors]
        with items_named(lambda column, i: f"{column}[{good[i]}]"):
            pieces.append((good, score(of_groups, samples[good])))
    scores = {name: np.full(len(samples), np.nan) for name in components}
    for rows, values in pieces:
        for name, of_rows in values.items():
            scores[name][rows] = of_rows
    return scores, errors
