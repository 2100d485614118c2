"""Scoring on a background thread while training continues, one validation late."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ctrlreward.held_out import HeldOutScores
from ctrlreward.lightning_package import Callback
from ctrlreward.placement import Worker
from ctrlreward.ranks import on_rank_zero, rank_and_ranks
from ctrlreward.samples import Samples

log = logging.getLogger(__name__)


class PendingScores:
    """Generations of at most one validation whose scores have not been logged yet.

    Every rank holds the texts; rank 0 scores them on a background thread. Training draws random
    numbers at the same time from generators that all threads share, so `score`, which gets the step
    of the samples with them, must not draw any.
    """

    def __init__(self, score: Callable[[int, Samples], HeldOutScores]) -> None:
        self._score = score
        self.worker = Worker("ctrlreward-scorer")
        self.step = -1
        self.samples: Samples | None = None
        self._future: Future[HeldOutScores] | None = None

    def start(self, step: int, samples: Samples) -> None:
        """Submit samples for scoring in place of the current ones; call this on every rank."""
        self.step, self.samples = step, samples
        if rank_and_ranks()[0] == 0:
            self._future = self.worker.submit(self._score, step, samples)

    def result(self, finish: Callable[[HeldOutScores], None]) -> HeldOutScores:
        """Wait for the scores and return them; call this on every rank.

        Rank 0 calls `finish` with them. If that or scoring fails, it raises the exception, and the
        other ranks a RuntimeError with its message.
        """

        def wait() -> HeldOutScores:
            if self._future is None:
                raise RuntimeError("no scores are pending. Call start first.")
            future, self._future = self._future, None  # so that close does not log its error again
            scores = future.result()
            self._future = future
            finish(scores)
            return scores

        return on_rank_zero(wait)

    def clear(self) -> None:
        """Drop the texts, once their scores have been logged."""
        self.step, self.samples, self._future = -1, None, None

    def close(self) -> None:
        """Wait for the running call, end the thread, and log an error that was not raised."""
        self.worker.close()
        error = None if self._future is None else self._future.exception()
        if error is not None:
            log.warning("scoring the texts of step %d failed: %r", self.step, error)

    def state_dict(self) -> dict[str, Any] | None:
        """Return step and texts as plain Python values; None if nothing is pending."""
        if self.samples is None:
            return None
        columns = {name: list(values) for name, values in self.samples.columns().items()}
        return {"step": self.step, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore step and texts; `start` has to be called to score them again."""
        self.clear()
        if state is not None:
            self.step, self.samples = state["step"], Samples(**state["columns"])


def late_score_error(callback: Callback, key: str) -> str:
    """Return the error message for a checkpoint callback that monitors an overlapped score."""
    return (
        f"{type(callback).__name__} chooses checkpoints by {key!r}, which is logged one validation "
        "late, after the weights have changed. Use GenerationScorer(overlap=False)."
    )
