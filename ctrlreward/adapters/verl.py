"""A `Reward` as verl's custom reward function (verl 0.9.1).

A file of your own builds it at module level, and verl's config names the file and the variable
(`reward.custom_reward_function.path` and `.name`):

```python
compute_score = as_async_compute_score(reward, -1.0, columns={"labels": "ground_truth"})
```

Which of the three is a matter of the reward manager. Those of verl 0.9 (`naive`, `dapo`) ask for
one sample at a time, many at once: `as_async_compute_score` scores together what is asked together.
The `batch` manager of earlier versions hands over a batch: `as_batch_compute_score`. Managers that
ask for one sample and wait take `as_compute_score`, the slowest.

A result has the same keys for every sample: `score`; `failed`, 1.0 or 0.0; and each component,
None where it has no value, which verl's validation leaves out. verl has no notion of a sample
without a reward: NaN would spread to the advantages of the whole group. So the caller has to say
what a failed sample is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlreward.adapters.reading import (
    check_columns,
    check_failed_score,
    check_pointwise,
    samples_of,
)
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples

Result = dict[str, float | None]

_KEYS = ("score", "failed")


def as_batch_compute_score(
    reward: Reward, failed_score: float, columns: Mapping[str, str] | None = None
) -> Callable[..., list[Result]]:
    """For the `batch` reward manager: a whole batch in one call.

    Args:
        reward: Scores the batch.
        failed_score: The score of a sample that failed, a finite number no better than a bad
            text's.
        columns: Column of `Samples` ← `"ground_truth"`, `"data_source"` or a key of `extra_info`,
            such as `{"labels": "ground_truth", "sources": "text"}`. Texts are prefix and
            solution where prefixes are mapped, else the solution alone.

    Raises:
        ValueError: Columns that `Samples` doesn't have, a score that is not finite, or a
            component whose name is taken. When called: a key that is not there.
    """
    mapped = _checked(reward, failed_score, columns)

    def compute_score(
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any] | None],
        **_unused: Any,  # verl adds what its config has under reward_kwargs
    ) -> list[Result]:
        given = zip(data_sources, ground_truths, extra_infos, strict=True)
        samples = _samples(list(solution_strs), [_row(*row) for row in given], mapped)
        return _results(reward(samples), failed_score)

    return compute_score


def as_compute_score(
    reward: Reward, failed_score: float, columns: Mapping[str, str] | None = None
) -> Callable[..., Result]:
    """For managers that ask for one sample and wait; arguments as `as_batch_compute_score` has.

    Raises:
        ValueError: Also where a component is a score of several samples at once.
    """
    check_pointwise(reward, "as_compute_score")
    mapped = _checked(reward, failed_score, columns)

    def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> Result:
        row = _row(data_source, ground_truth, extra_info)
        return _results(reward(_samples([solution_str], [row], mapped)), failed_score)[0]

    return compute_score


def as_async_compute_score(
    reward: Reward,
    failed_score: float,
    columns: Mapping[str, str] | None = None,
    wait: float = 0.05,
) -> Callable[..., Awaitable[Result]]:
    """For verl 0.9's managers: a coroutine that scores together what is asked together.

    Args:
        reward: As `as_batch_compute_score` takes it.
        failed_score: As `as_batch_compute_score` takes it.
        columns: As `as_batch_compute_score` takes them.
        wait: Seconds from the first sample to the scoring of all that have come meanwhile.

    Raises:
        ValueError: Also where a component is a score of several samples at once, since what comes
            together is chance.
    """
    check_pointwise(reward, "as_async_compute_score")
    mapped = _checked(reward, failed_score, columns)
    gathered = _Gathered(reward, wait)

    async def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> Result:
        row = _row(data_source, ground_truth, extra_info)
        batch, place = await gathered.score(_samples([solution_str], [row], mapped))
        return _results(batch, failed_score)[place]

    return compute_score


class _Gathered:
    """Scores in one call the samples that come within a time of the first."""

    def __init__(self, reward: Reward, wait: float) -> None:
        self.reward = reward
        self.wait = wait
        self.waiting: list[Samples] = []
        self.scoring: asyncio.Task[RewardBatch] | None = None

    async def score(self, sample: Samples) -> tuple[RewardBatch, int]:
        """The scores of all that were gathered, and the sample's place among them."""
        if not self.waiting:
            self.scoring = asyncio.create_task(self._score())
        self.waiting.append(sample)
        assert self.scoring is not None
        scoring, place = self.scoring, len(self.waiting) - 1
        # One caller that gives up must not end the others' scoring.
        return await asyncio.shield(scoring), place

    async def _score(self) -> RewardBatch:
        await asyncio.sleep(self.wait)
        samples, self.waiting = Samples.concat(self.waiting), []
        return await asyncio.wrap_future(self.reward.submit(samples))


def _checked(
    reward: Reward, failed_score: float, columns: Mapping[str, str] | None
) -> dict[str, str]:
    check_failed_score(reward, failed_score, _KEYS)
    return check_columns(columns)


def _row(
    data_source: str, ground_truth: Any, extra_info: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {**(extra_info or {}), "data_source": data_source, "ground_truth": ground_truth}


def _samples(
    solutions: Sequence[str], rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> Samples:
    for i, row in enumerate(rows):
        for name, source in columns.items():
            if source not in row:
                raise ValueError(
                    f"columns maps {name!r} to {source!r}, and sample {i} has {', '.join(row)}: "
                    "give one of these"
                )
    table = {source: [row[source] for row in rows] for source in columns.values()}
    return samples_of(solutions, None, table, columns)


def _results(batch: RewardBatch, failed_score: float) -> list[Result]:
    results: list[Result] = []
    for i, failed in enumerate(batch.failed):
        components = {name: float(values[i]) for name, values in batch.components.items()}
        results.append(
            {
                "score": failed_score if failed else float(batch.total[i]),
                "failed": float(failed),
                **{n: None if np.isnan(value) else value for n, value in components.items()},
            }
        )
    return results
