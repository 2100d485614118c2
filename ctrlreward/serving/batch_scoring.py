"""Results of one batch of merged requests, also if a sample makes a scorer raise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.items import items_named
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score
from ctrlreward.serving.contract import RejectedSamples, ScorerFailed

# Errors about the samples; any other error is the scorer's.
ABOUT_SAMPLES = (ValueError, TypeError)

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


def results_of(requests: Sequence[WaitingRequest]) -> list[Any]:
    """Return the result or the rejection of each request of a batch."""
    started = time.perf_counter()
    try:
        scores = merged_scores(requests[0].components, [each.samples for each in requests])
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
            except ABOUT_SAMPLES as error:
                rejected = tolerant_scores(components, samples)[1]
                return RejectedSamples.at(error, min(rejected, default=None))
    except Exception as error:
        return refusal(error)
    messages = {row: str(error) for row, error in errors.items()}
    return _finish(request, scores, messages, time.perf_counter() - started)


def _finish(
    request: WaitingRequest, scores: dict[str, Scores], errors: dict[int, str], seconds: float
) -> Any:
    try:
        return request.finish(scores, errors, seconds)
    except Exception as error:  # of the aggregate, of any type
        return ScorerFailed(f"{type(error).__name__}: {error}")


def refusal(error: Exception) -> Exception:
    """Return the rejection for an error of a scorer."""
    if isinstance(error, ABOUT_SAMPLES):
        return RejectedSamples.at(error, None)
    return ScorerFailed(f"{type(error).__name__}: {error}")


def merged_scores(
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
            own = [e for e in errors.values() if not isinstance(e, ABOUT_SAMPLES)]
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
