"""Adapter of a `Reward` to verl's custom reward function (verl 0.9.1).

verl's config names a Python file and a variable in it (`reward.custom_reward_function.path` and
`.name`). The reward manager decides which of three functions you need:

- `as_async_compute_score` for the managers of verl 0.9 (`naive`, `dapo`), which make many
  concurrent calls of one sample each. It scores concurrent samples in one batch.
- `as_batch_compute_score` for the `batch` manager of earlier versions.
- `as_compute_score` for managers that wait for one sample at a time; the slowest. `remote` is one,
  and copies the models into each of `reward.num_workers` processes.

A result has the same keys for every sample: `score`; `failed`, 1.0 or 0.0; each component. In
verl every sample has a reward, and NaN would spread to others. So you have to choose the score of a
failed sample, and a component that failed gets the worst value so far (`failed_components`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from ctrlreward.adapters._conversion import (
    build_samples,
    check_columns,
    check_failed_score,
    check_pointwise,
)
from ctrlreward.arguments import one_of
from ctrlreward.reward import RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples

Result = dict[str, float | None]
FailedComponents = Literal["worst", "none"]


def as_batch_compute_score(
    reward: RewardLike,
    failed_score: float,
    columns: Mapping[str, str] | None = None,
    failed_components: FailedComponents = "worst",
) -> Callable[..., list[Result]]:
    """Return a function for the `batch` reward manager, which scores a batch per call.

    Args:
        reward: The reward, or the arguments of `Reward`.
        failed_score: Score of a failed sample, a finite number no better than a bad text's score.
        columns: Column of `Samples` → `"ground_truth"`, `"data_source"` or a key of `extra_info`,
            such as `{"labels": "ground_truth", "sources": "text"}`. Texts are prefix + solution if
            `prefixes` is mapped, else the solution alone.
        failed_components: Value of a component that failed. `"worst"`: the worst one that this
            function has returned, before the first one the worst end of the score's range if it is
            finite, else `failed_score`. `"none"`: None, which verl's validation leaves out of its
            means; in `gdpo_reward_keys` it makes all advantages NaN.

    Raises:
        TypeError: `reward` is neither a `Reward` nor components.
        ValueError: A column that `Samples` doesn't have, a score that is not finite, or a component
            named `score` or `failed`. When called: a key that the sample doesn't have.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
        >>> compute_score = as_batch_compute_score(similarity, -1.0, {"sources": "original"})
        >>> compute_score(["menu"], ["broth"], [""], [{"original": "soup"}])
        [{'score': 0.6, 'failed': 0.0, 'similarity': 0.6}]
    """
    return _ComputeScore(reward, failed_score, columns, failed_components).of_batch


def as_compute_score(
    reward: RewardLike,
    failed_score: float,
    columns: Mapping[str, str] | None = None,
    failed_components: FailedComponents = "worst",
) -> Callable[..., Result]:
    """Return a function for managers that wait for one sample at a time.

    Takes the arguments of `as_batch_compute_score`, without components of several samples.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> compute_score = as_compute_score(similarity, -1.0, {"sources": "original"})
        >>> compute_score("menu", "", ground_truth="", extra_info={"original": "soup"})
        {'score': -1.0, 'failed': 1.0, 'similarity': -1.0}
    """
    caller = "as_compute_score"
    return _ComputeScore(reward, failed_score, columns, failed_components, caller).of_sample


def as_async_compute_score(
    reward: RewardLike,
    failed_score: float,
    columns: Mapping[str, str] | None = None,
    wait: float = 0.05,
    failed_components: FailedComponents = "worst",
) -> Callable[..., Coroutine[Any, Any, Result]]:
    """Return a coroutine function for verl 0.9's managers that batches concurrent calls.

    Takes the arguments of `as_compute_score`; the first sample of a batch waits `wait` seconds.

    Examples:
        >>> import asyncio
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> compute_score = as_async_compute_score(similarity, -1.0, {"sources": "original"})
        >>> asyncio.run(compute_score("menu", "broth", "", extra_info={"original": "soup"}))
        {'score': 0.6, 'failed': 0.0, 'similarity': 0.6}
    """
    caller = "as_async_compute_score"
    # verl asks `inspect.iscoroutinefunction`, which is true of a bound method but not of an object.
    made = _ComputeScore(reward, failed_score, columns, failed_components, caller, wait)
    return made.of_concurrent_sample


class _ComputeScore:
    """Functions of a reward: bound methods, since closures don't pickle.

    `caller` is the function that makes them if they get one sample at a time.
    """

    def __init__(
        self,
        reward: RewardLike,
        failed_score: float,
        columns: Mapping[str, str] | None,
        failed_components: FailedComponents,
        caller: str = "",
        wait: float = 0.0,
    ) -> None:
        self.reward, self.failed_score, self.wait = as_reward(reward), failed_score, wait
        self.columns = check_columns(columns, self.reward)
        check_failed_score(self.reward, failed_score, ("score", "failed"))
        if caller:
            check_pointwise(self.reward, caller)
        one_of("failed_components", failed_components, get_args(FailedComponents))
        self.failed_components = failed_components
        self.worst: dict[str, float] = {}
        self.queue: list[Samples] = []
        self.scoring: asyncio.Task[RewardBatch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings without pending samples: a copy starts with none."""
        return {**self.__dict__, "queue": [], "scoring": None}

    def of_batch(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any] | None],
        **_unused: Any,  # verl adds the reward_kwargs of its config
    ) -> list[Result]:
        """Return the results of a batch."""
        samples = self._samples(data_sources, solution_strs, ground_truths, extra_infos)
        batch = self._noted(self.reward(samples))
        return [self._result(batch, i) for i in range(len(samples))]

    def of_sample(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> Result:
        """Return the result of one sample."""
        return self.of_batch([data_source], [solution_str], [ground_truth], [extra_info])[0]

    async def of_concurrent_sample(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> Result:
        """Return the result of one sample, scored with the others of its batch."""
        sample = self._samples([data_source], [solution_str], [ground_truth], [extra_info])
        # The task has ended before the queue is empty if its event loop was closed.
        if not self.queue or self.scoring is None or self.scoring.done():
            self.queue = []
            self.scoring = asyncio.create_task(self._score_queue())
        self.queue.append(sample)
        scoring, index = self.scoring, len(self.queue) - 1
        # A cancelled caller must not cancel the scoring for the others.
        return self._result(await asyncio.shield(scoring), index)

    async def _score_queue(self) -> RewardBatch:
        await asyncio.sleep(self.wait)
        samples, self.queue = Samples.concat(self.queue), []
        return self._noted(await asyncio.wrap_future(self.reward.submit(samples)))

    def _samples(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any] | None],
    ) -> Samples:
        rows = [
            {**(extra or {}), "data_source": source, "ground_truth": truth}
            for source, truth, extra in zip(data_sources, ground_truths, extra_infos, strict=True)
        ]
        for i, row in enumerate(rows):
            for name, source in self.columns.items():
                if source not in row:
                    raise ValueError(
                        f"columns maps {name!r} to {source!r}, but sample {i} has "
                        f"{', '.join(row)}. Use one of these."
                    )
        table = {source: [row[source] for row in rows] for source in self.columns.values()}
        return build_samples(solution_strs, None, table, self.columns)

    def _result(self, batch: RewardBatch, i: int) -> Result:
        failed = bool(batch.failed[i])
        result: Result = {
            "score": self.failed_score if failed else float(batch.total[i]),
            "failed": float(failed),
        }
        for name, values in batch.components.items():
            if not np.isnan(values[i]):
                result[name] = float(values[i])
            else:
                result[name] = self._worst(name) if self.failed_components == "worst" else None
        return result

    def _noted(self, batch: RewardBatch) -> RewardBatch:
        """Note the worst value of each component so far, and return the batch."""
        for name, values in batch.components.items():
            valid = values[~np.isnan(values)].tolist()
            if valid:
                pick = max if self._is_cost(name) else min
                self.worst[name] = pick([*valid, self.worst.get(name, valid[0])])
        return batch

    def _worst(self, name: str) -> float:
        if name in self.worst:
            return self.worst[name]
        component = self.reward.components.get(name)
        bound = math.inf if component is None else component.spec.range[self._is_cost(name)]
        return bound if math.isfinite(bound) else self.failed_score

    def _is_cost(self, name: str) -> bool:
        """Whether a component is better when lower, such as the disagreement of an ensemble."""
        component = self.reward.components.get(name)
        return component is None or not component.spec.higher_is_better
