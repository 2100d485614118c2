"""Scores as torchmetrics: `update` on each rank, one value over all ranks.

The scorer is neither moved nor copied with its metric.

    >>> from ctrlreward import Similarity, WordVectors
    >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
    >>> metrics = [ScoreMean(similarity), FailRate(similarity), ScoreOfAll(similarity)]
    >>> for metric in metrics:
    ...     metric.update(["broth", "soup", "lake"], sources="soup", ids=[0, 1, 2])  # no vector
    ...     metric.update(["soup"], sources="soup", ids=[1])  # repeated by a sampler
    >>> [round(metric.compute().item(), 3) for metric in metrics]  # (0.6 + 1 + 1) / 3, …, 1.6 / 2
    [0.867, 0.25, 0.8]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from ctrlreward.functional.means import valid_mean
from ctrlreward.samples import (
    Samples,
    SamplesLike,
    as_samples,
    columns_from_records,
    records_of,
)
from ctrlreward.scorers.base import Component, score
from ctrlreward.scorers.components import ComponentLike, as_component


@dataclass
class _Shared:
    """A component that deep copies share, so that models are never copied."""

    component: Component

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


class _ScoreMetric(Metric):
    """Base class of metrics over one component; other keywords go to `torchmetrics.Metric`."""

    full_state_update = False
    __jit_unused_properties__: ClassVar = [  # torch.jit.script compiles all others
        *Metric.__jit_unused_properties__,
        "component",
        "dtype",
        "higher_is_better",
    ]

    def __init__(self, component: ComponentLike, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._shared = _Shared(as_component("component", component))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        """Move the states but keep their dtype: in a bfloat16 module a sum would stop growing."""
        return super()._apply(lambda t: t.to(fn(t.new_empty(0)).device), exclude_state)

    @property
    def component(self) -> Component:
        return self._shared.component

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]  # torchmetrics has it per class
        return self.component.spec.higher_is_better


class _ScoreSums(_ScoreMetric):
    """Base class of metrics of sums; metrics of one component share them in a collection."""

    if TYPE_CHECKING:  # torch.jit.script cannot read the annotations of a class as text
        sums: Tensor  # of valid scores, of valid samples, of samples

    def __init__(self, component: ComponentLike, **kwargs: Any) -> None:
        super().__init__(component, **kwargs)
        scorer, name = self.component.scorer, self.component.name
        if not scorer.pointwise:
            raise ValueError(
                f"{name} is computed over several samples at once: use ScoreOfAll, or "
                "FunctionScorer(function, pointwise=True) for a function of each text alone"
            )
        # A `MetricCollection` merges metrics of equal states, as two scorers may have by chance.
        identity = torch.tensor([*id(scorer).to_bytes(8, "big"), list(scorer.specs).index(name)])
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("identity", identity, dist_reduce_fx="max")

    def update(
        self, data: SamplesLike | None = None, *, ids: Sequence[int] | None = None, **columns: Any
    ) -> None:
        """Score n samples and add them up; `ids` are for `ScoreOfAll` in the same collection."""
        found = score({"score": self.component}, as_samples(data, **columns)).warned()["score"]
        scores = torch.from_numpy(found).to(self.sums)
        valid = ~scores.isnan()
        self.sums += torch.stack([scores.nansum(), valid.sum(), torch.ones_like(scores).sum()])


class ScoreMean(_ScoreSums):
    """Mean of a score over the samples that did not fail, float64; NaN if all failed.

    The component is a score that depends on one sample alone, `ctrleval["coherence"]`, or a scorer
    with a single score. Samples that a distributed sampler repeats count twice.
    """

    def compute(self) -> Tensor:
        return self.sums[0] / self.sums[1]


class FailRate(_ScoreSums):
    """Share of the samples for which a score is NaN, float64, in [0, 1]; NaN without samples."""

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return False

    def compute(self) -> Tensor:
        return 1.0 - self.sums[1] / self.sums[2]


class ScoreOfAll(_ScoreMetric):
    """Mean of a score computed over the samples of all ranks together, float64; NaN if all failed.

    For scores that depend on several samples (`distinct["distinct_2"]`): `compute` gathers the
    samples on every rank, and each rank scores all of them.
    """

    if TYPE_CHECKING:
        records: list[Tensor] | Tensor

    def __init__(self, component: ComponentLike, **kwargs: Any) -> None:
        super().__init__(component, **kwargs)
        # JSON lines in UTF-8, because torchmetrics gathers only tensors.
        self.add_state("records", [], dist_reduce_fx="cat")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the records, which torchmetrics also uses for a rank without samples."""
        return torch.uint8

    def update(
        self, data: SamplesLike | None = None, *, ids: Sequence[int] | None = None, **columns: Any
    ) -> None:
        """Keep n samples until `compute`, with the same columns in all updates on all ranks.

        With `ids`, their indices in the dataset, samples are scored in the dataset's order, and
        those that a sampler repeats count once.
        """
        samples = as_samples(data, **columns)
        if ids is not None and len(ids) != len(samples):
            raise ValueError(f"ids must be one per sample, got {len(ids)} for {len(samples)}")
        if len(samples):
            update = [None if ids is None else list(map(int, ids)), records_of(samples)]
            encoded = bytearray((json.dumps(update) + "\n").encode())
            records = torch.frombuffer(encoded, dtype=torch.uint8)
            assert isinstance(self.records, list)
            self.records.append(records.to(self.device, copy=True))

    def compute(self) -> Tensor:
        """Return the mean; a ValueError if only some updates had ids."""
        content = dim_zero_cat(self.records).cpu().numpy() if len(self.records) else b""
        updates = [json.loads(line) for line in bytes(content).decode().splitlines()]
        if not updates:
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        samples = Samples.concat(Samples(**columns_from_records(rows)) for _, rows in updates)
        rows = {i: row for row, i in enumerate(i for ids, _ in updates for i in ids or ())}
        if rows and any(ids is None for ids, _ in updates):
            raise ValueError("ids must be passed in every update, or in none")
        if rows:
            samples = samples[[rows[i] for i in sorted(rows)]]
        values = score({"score": self.component}, samples).warned()["score"]
        return torch.tensor(valid_mean(values), dtype=torch.float64, device=self.device)
