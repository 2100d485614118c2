"""Results of one batch of the server, request by request where a scorer raises."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores
from ctrlreward.serving.isolation import (
    ABOUT_SAMPLES,
    first_culprit,
    merged_scores,
    tolerant_scores,
)
from ctrlreward.serving.refusals import RejectedSamples, ScorerFailed
from ctrlreward.serving.wire import ScoredRequest

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
    result: asyncio.Future[Any]
    arrived: float = field(default_factory=time.perf_counter)


def scores_only(scores: dict[str, Scores], errors: dict[int, str], seconds: float) -> Any:
    """Return the scores as they are: the result of a request to one scorer."""
    return scores


def results_of(requests: Sequence[WaitingRequest]) -> list[Any]:
    """Return the result or the refusal of each request of a batch."""
    started = time.perf_counter()
    components = requests[0].components
    try:
        scores = merged_scores(components, [request.samples for request in requests])
    except Exception:
        return [_result_alone(request) for request in requests]
    seconds = time.perf_counter() - started
    return [
        _finished_or_refused(request, own, {}, seconds)
        for request, own in zip(requests, scores, strict=True)
    ]


def _result_alone(request: WaitingRequest) -> Any:
    """Return the result or the refusal of a request whose batch made a scorer raise."""
    started = time.perf_counter()
    if request.result.done():  # its client is gone
        return None
    components, samples = request.components, request.samples
    errors: dict[int, Exception] = {}
    try:
        if request.strict:
            (scores,) = merged_scores(components, [samples])
        else:
            scores, errors = tolerant_scores(components, samples)
    except ABOUT_SAMPLES as error:
        return refusal(error, first_culprit(components, samples))
    except Exception as error:
        return refusal(error, None)
    messages = {row: str(error) for row, error in errors.items()}
    return _finished_or_refused(request, scores, messages, time.perf_counter() - started)


def _finished_or_refused(
    request: WaitingRequest, scores: dict[str, Scores], errors: dict[int, str], seconds: float
) -> Any:
    try:
        return request.finish(scores, errors, seconds)
    except Exception as error:  # of the aggregate, whatever its type
        return ScorerFailed(f"{type(error).__name__}: {error}")


def refusal(error: Exception, row: int | None) -> Exception:
    """Return the refusal for an error of a scorer, at the sample that caused it if it is known."""
    if isinstance(error, ABOUT_SAMPLES):
        return RejectedSamples.at(error, row)
    return ScorerFailed(f"{type(error).__name__}: {error}")


def scored_request(
    reward: Reward, scores: dict[str, Scores], errors: dict[int, str], seconds: float
) -> ScoredRequest:
    """Return the rewards of one request; the aggregate never sees another's scores."""
    return ScoredRequest(reward.combine(scores, seconds), errors)
