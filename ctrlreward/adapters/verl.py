"""Adapter of a `Reward` to verl's custom reward function (verl 0.9.1).

The managers `naive` and `dapo` make many concurrent calls of one sample each, which
`as_async_compute_score` scores in one batch; `remote` takes `as_compute_score`.

A result has the same keys for every sample: `score`; `failed`, 1.0 or 0.0; each component. In verl
every sample has a reward, and NaN would spread to others: all values of a failed sample are
`failed_score`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ctrlreward.adapters._conversion import (
    build_samples,
    check_columns,
    check_single_samples,
    finite_values,
)
from ctrlreward.reward import RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples

Result = dict[str, float]


def as_compute_score(
    reward: RewardLike, failed_score: float, columns: Mapping[str, str] | None = None
) -> Callable[..., Result]:
    """Return a function for managers that wait for one sample at a time.

    Args:
        reward: The reward, or the arguments of `Reward`, whose scores depend on one sample alone.
        failed_score: Score of a failed sample, a finite number no better than a bad text's score.
        columns: Column of `Samples` → `"ground_truth"`, `"data_source"` or a key of `extra_info`,
            such as `{"labels": "ground_truth", "sources": "text"}`. Texts are prefix + solution if
            `prefixes` is mapped, else the solution alone.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> compute_score = as_compute_score(similarity, -1.0, {"sources": "original"})
        >>> compute_score("menu", "", ground_truth="", extra_info={"original": "soup"})
        {'score': -1.0, 'similarity': -1.0, 'failed': 1.0}
    """
    return _ComputeScore(reward, failed_score, columns).of_sample


def as_async_compute_score(
    reward: RewardLike,
    failed_score: float,
    columns: Mapping[str, str] | None = None,
    wait: float = 0.05,
) -> Callable[..., Coroutine[Any, Any, Result]]:
    """Return a coroutine function for verl 0.9's managers that batches concurrent calls.

    Takes the arguments of `as_compute_score`; the first sample of a batch waits `wait` seconds.

    Examples:
        >>> import asyncio
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> compute_score = as_async_compute_score(similarity, -1.0, {"sources": "original"})
        >>> asyncio.run(compute_score("menu", "broth", "", extra_info={"original": "soup"}))
        {'score': 0.6, 'similarity': 0.6, 'failed': 0.0}
    """
    # verl asks `inspect.iscoroutinefunction`, which is true of a bound method but not of an object.
    return _ComputeScore(reward, failed_score, columns, wait).of_concurrent_sample


class _ComputeScore:
    """Functions of a reward: bound methods, since closures don't pickle."""

    def __init__(
        self,
        reward: RewardLike,
        failed_score: float,
        columns: Mapping[str, str] | None,
        wait: float = 0.0,
    ) -> None:
        self.reward, self.failed_score, self.wait = as_reward(reward), failed_score, wait
        self.columns = check_columns(columns, self.reward)
        check_single_samples(self.reward, failed_score, ("score", "failed"))
        self.queue: list[Samples] = []
        self.scoring: asyncio.Task[list[Result | Exception]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings without pending samples: a copy starts with none."""
        return {**self.__dict__, "queue": [], "scoring": None}

    def of_sample(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_unused: Any,  # verl adds the reward_kwargs of its config
    ) -> Result:
        sample = self._sample(data_source, solution_str, ground_truth, extra_info)
        return self._results(self.reward(sample))[0]

    async def of_concurrent_sample(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> Result:
        sample = self._sample(data_source, solution_str, ground_truth, extra_info)
        # The task has ended before the queue is empty if its event loop was closed.
        if not self.queue or self.scoring is None or self.scoring.done():
            self.queue = []
            self.scoring = asyncio.create_task(self._score_queue())
        self.queue.append(sample)
        scoring, index = self.scoring, len(self.queue) - 1
        # A cancelled caller must not cancel the scoring for the others.
        result = (await asyncio.shield(scoring))[index]
        if isinstance(result, Exception):
            raise result
        return result

    async def _score_queue(self) -> list[Result | Exception]:
        await asyncio.sleep(self.wait)
        queue, self.queue = self.queue, []
        return await self._scored(queue)

    async def _scored(self, asked: list[Samples]) -> list[Result | Exception]:
        """Return the result of each sample; if they fail together, each is scored by itself."""
        try:
            batch = await asyncio.wrap_future(self.reward.submit(Samples.concat(asked)))
            return [*self._results(batch)]
        except Exception as error:
            if len(asked) == 1 or isinstance(error, ConnectionError):
                return [error] * len(asked)
            return [(await self._scored([sample]))[0] for sample in asked]

    def _sample(
        self, source: str, solution: str, truth: Any, extra: Mapping[str, Any] | None
    ) -> Samples:
        row = {**(extra or {}), "data_source": source, "ground_truth": truth}
        return build_samples([solution], None, {k: [v] for k, v in row.items()}, self.columns)

    def _results(self, batch: RewardBatch) -> list[Result]:
        columns = finite_values(batch, self.failed_score, "score")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
