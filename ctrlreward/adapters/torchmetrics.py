"""Scores as torchmetrics: `update(samples)` on each rank, the same value on all ranks.

```python
self.coherence = ScoreMean(ctrleval["coherence"])  # in a LightningModule
...
self.coherence.update(samples)                     # in validation_step
self.log("coherence", self.coherence)
```

A metric holds its scorer aside: it is neither a submodule nor copied with the metric.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from ctrlreward.functional.statistics import valid_mean
from ctrlreward.samples import JSON_KEYS, Samples
from ctrlreward.scorers.base import Component, Scorer, score


class _Aside:
    """A component that a copy of its metric shares, and torch does not see into."""

    def __init__(self, component: Component) -> None:
        self.component = component

    def __deepcopy__(self, memo: dict[int, Any]) -> _Aside:
        return self


class _ScorerMetric(Metric):
    """What all metrics of scores have: a component aside, and its direction."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, component: Component) -> None:
        super().__init__()
        self._aside = _Aside(component)

    @property
    def component(self) -> Component:
        """What is scored."""
        return self._aside.component

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]  # torchmetrics has it per class
        """The score's direction."""
        return self.component.spec.higher_is_better


# Each scorer's number: what tells apart scorers whose sums happen to be equal.
_numbers: WeakKeyDictionary[Scorer, int] = WeakKeyDictionary()
_next: Iterator[int] = count(1)


class _Sums(_ScorerMetric):
    """Sums over all samples of all scores of one scorer.

    Metrics of one scorer then have the same states, so that a `MetricCollection` finds them equal
    and scores each batch once for all of them.
    """

    totals: Tensor
    counts: Tensor
    seen: Tensor
    scorer_number: Tensor

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        scorer = component.scorer
        if not scorer.pointwise:
            raise ValueError(
                f"{component.name} is a score of several samples at once, and a mean over batches "
                f"would be another: give ScoreOfAll({type(scorer).__name__}(...)"
                f"[{component.name!r}])"
            )
        self._names = list(scorer.specs)
        k = len(self._names)
        if scorer not in _numbers:
            _numbers[scorer] = next(_next)
        self.add_state("totals", torch.zeros(k, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(k, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seen", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("scorer_number", torch.tensor(_numbers[scorer]), dist_reduce_fx="max")

    def update(self, samples: Samples) -> None:
        """Scores samples, n of them, each distinct one once."""
        scorer = self.component.scorer
        scores = score({name: scorer[name] for name in self._names}, samples)
        table = torch.from_numpy(np.stack([scores[name] for name in self._names]))
        failed = table.isnan()
        self.totals += table.masked_fill(failed, 0.0).sum(dim=1).to(self.totals)
        self.counts += (~failed).sum(dim=1).to(self.counts.device)
        self.seen += len(samples)

    def _place(self) -> int:
        return self._names.index(self.component.name)


class ScoreMean(_Sums):
    """The mean of a score over the samples that did not fail; NaN if all did.

    Samples that a distributed sampler repeats count twice; `ScoreOfAll` can leave them out.

    Args:
        component: A score that depends on one sample alone, `ctrleval["coherence"]`.

    Raises:
        ValueError: It depends on several.
    """

    def compute(self) -> Tensor:
        """The mean, float64."""
        place = self._place()
        return self.totals[place] / self.counts[place]


class FailRate(_Sums):
    """The share of samples for which a score is NaN, in [0, 1]; NaN if there were none.

    Args:
        component: As `ScoreMean` takes it.

    Raises:
        ValueError: It depends on several samples.
    """

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """It is better when lower, whatever the score."""
        return False

    def compute(self) -> Tensor:
        """The rate, float64."""
        return 1.0 - self.counts[self._place()].double() / self.seen


class ScoreOfAll(_ScorerMetric):
    """A score of all ranks' samples together, for those that read several samples at once
    (`Distinct`); the mean over the samples that did not fail, NaN if there is none.

    The samples themselves are the state: `compute` gathers them on every rank, and each rank scores
    all of them.

    Args:
        component: `distinct["distinct_2"]`, or one that depends on one sample alone.
    """

    records: list[Tensor] | Tensor

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        # The samples as JSON lines in UTF-8: torchmetrics gathers nothing but tensors.
        self.add_state("records", [], dist_reduce_fx="cat")

    @property
    def dtype(self) -> torch.dtype:
        """What torchmetrics gathers from a rank that has seen nothing: it must fit the others'."""
        return torch.uint8

    def update(self, samples: Samples, ids: Sequence[int] | None = None) -> None:
        """Keeps samples until `compute`.

        Args:
            samples: All updates on all ranks with the same columns.
            ids: Their indices in the dataset. With them samples are scored in the dataset's order,
                whichever rank they were on, and those that a sampler repeats count once; without,
                rank after rank.

        Raises:
            ValueError: There is not one id per sample.
        """
        if ids is not None and len(ids) != len(samples):
            raise ValueError(f"{len(ids)} ids for {len(samples)} samples: give one per sample")
        columns = samples.columns()
        lines = []
        for i, row in enumerate(zip(*columns.values(), strict=True)):
            record = dict(zip(columns, row, strict=True))
            lines.append(json.dumps([None if ids is None else int(ids[i]), record]) + "\n")
        text = bytearray("".join(lines).encode())
        if text:
            assert isinstance(self.records, list)
            kept = torch.frombuffer(text, dtype=torch.uint8)
            self.records.append(kept.to(self.device, copy=True))

    def compute(self) -> Tensor:
        """The mean of the score, float64.

        Raises:
            ValueError: Updates had different columns, or only some had ids.
        """
        samples = _read(self.records)
        if samples is None:
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        values = score({"score": self.component}, samples)["score"]
        return torch.tensor(valid_mean(values), dtype=torch.float64, device=self.device)


def _read(records: list[Tensor] | Tensor) -> Samples | None:
    """The samples of all records in the order of their ids, each id once; None if there is none."""
    if isinstance(records, list) and not records:
        return None
    lines = bytes(dim_zero_cat(records).cpu().numpy()).decode().splitlines()
    rows: list[tuple[int | None, dict[str, str]]] = [tuple(json.loads(line)) for line in lines]
    if not rows:
        return None
    given = [i for i, _ in rows if i is not None]
    if given and len(given) < len(rows):
        raise ValueError(
            f"ids were given for {len(given)} of {len(rows)} samples: give them in every update, "
            "or in none"
        )
    found = [row for _, row in rows]
    if given:
        by_id = dict(zip(given, found, strict=True))
        found = [by_id[i] for i in sorted(by_id)]
    names = [name for name in JSON_KEYS if name in found[0]]
    for row in found:
        if set(row) != set(names):
            raise ValueError(
                f"one update had the columns {', '.join(names)}, another {', '.join(row)}: "
                "give all the same"
            )
    return Samples(**{name: [row[name] for row in found] for name in names})
