"""Scoring on a thread beside training, with results that are fetched one validation later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ctrlreward.placement import Worker
from ctrlreward.ranks import on_rank_zero, rank_and_ranks
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

log = logging.getLogger(__name__)

THREAD = "ctrlreward-scorer"

Work = Callable[[int, Samples], dict[str, Scores]]


class Pending:
    """Texts of one validation whose scores are on their way, or none.

    Every rank holds the texts, rank 0 scores them. Random numbers are drawn by training
    meanwhile, so the work must draw none: the global generators are shared by all threads.

    Args:
        work: Scores the texts that were generated at a step.

    Attributes:
        step: `trainer.global_step` when the texts were generated; -1 without any.
        samples: The texts; None without any.
        worker: The thread that scores.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.worker = Worker(THREAD)
        self.step = -1
        self.samples: Samples | None = None
        self._future: Future[dict[str, Scores]] | None = None

    def start(self, step: int, samples: Samples) -> None:
        """Has texts scored, in place of those before; every rank has to make this call."""
        self.step, self.samples = step, samples
        if rank_and_ranks()[0] == 0:
            self._future = self.worker.submit(self._work, step, samples)

    def result(self, finish: Callable[[dict[str, Scores]], None]) -> dict[str, Scores]:
        """Waits for the scores and gives them to every rank; each has to make this call.

        Args:
            finish: Called with the scores, on rank 0 alone.

        Raises:
            Exception: What the work raised, on rank 0.
            RuntimeError: The work failed, on the other ranks; carries rank 0's message.
        """

        def wait() -> dict[str, Scores]:
            if self._future is None:
                raise RuntimeError("nothing was started: call start first")
            future, self._future = self._future, None  # an error is raised once, here
            scores = future.result()
            self._future = future
            finish(scores)
            return scores

        return on_rank_zero(wait)

    def clear(self) -> None:
        """Forgets the texts, once their scores are told."""
        self.step, self.samples, self._future = -1, None, None

    def close(self) -> None:
        """Waits until the thread is done with its texts, and ends it; the texts stay."""
        self.worker.close()
        error = None if self._future is None else self._future.exception()
        if error is not None:
            log.warning("scoring the texts of step %d failed: %r", self.step, error)

    def state_dict(self) -> dict[str, Any] | None:
        """The texts as plain strings; None without any."""
        if self.samples is None:
            return None
        columns = {name: list(values) for name, values in self.samples.columns().items()}
        return {"step": self.step, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Takes the texts of a checkpoint; `start` has them scored again."""
        self.clear()
        if state is not None:
            self.step, self.samples = state["step"], Samples(**state["columns"])
