"""Scores as torchmetrics: `update` on each rank, one value over all ranks.

The scorer is not a submodule of its metric: it is neither moved nor copied with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from ctrlreward.functional.means import valid_mean
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Component, Scorer, score
from ctrlreward.scorers.components import ComponentLike, FunctionScorer, as_component


class _ComponentRef:
    """A reference to a component that deep copies share, so that models are never copied."""

    def __init__(self, component: Component) -> None:
        self.component = component

    def __deepcopy__(self, memo: dict[int, Any]) -> _ComponentRef:
        return self


class _ScoreMetric(Metric):
    """Base class of metrics over one component; other keywords go to `torchmetrics.Metric`."""

    is_differentiable = False
    full_state_update = False
    __jit_unused_properties__: ClassVar = [  # torch.jit.script compiles all others
        *Metric.__jit_unused_properties__,
        "component",
        "dtype",
        "higher_is_better",
    ]

    def __init__(self, component: ComponentLike, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._component_ref = _ComponentRef(as_component("component", component))

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        """Move the states but keep their dtype: in a bfloat16 module a sum would stop growing."""
        return super()._apply(lambda t: t.to(fn(t.new_empty(0)).device), exclude_state)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one or several values, as other torchmetrics; figure and axes."""
        return self._plot(val, ax)

    @property
    def component(self) -> Component:
        """The component that is scored."""
        return self._component_ref.component

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]  # torchmetrics has it per class
        """The score's direction."""
        return self.component.spec.higher_is_better


# A small number for each scorer, since torchmetrics compares states by `allclose`: it distinguishes
# scorers whose sums happen to be equal.
_scorer_ids: WeakKeyDictionary[Scorer, int] = WeakKeyDictionary()
_next_id: Iterator[int] = count(1)


class _ScoreSums(_ScoreMetric):
    """Base class of metrics computed from sums over the samples.

    The states are the sums of all scores of the scorer whose columns the samples have. Metrics of
    one scorer therefore have equal states, and a `MetricCollection` scores each batch once.
    """

    if TYPE_CHECKING:  # torch.jit.script cannot read the annotations of a class as text
        totals: Tensor
        counts: Tensor
        seen: Tensor
        scorer_id: Tensor

    def __init__(self, component: ComponentLike, **kwargs: Any) -> None:
        super().__init__(component, **kwargs)
        scorer, name = self.component.scorer, self.component.name
        if not scorer.pointwise:
            use = f"ScoreOfAll({type(scorer).__name__}(...)[{name!r}])"
            if isinstance(scorer, FunctionScorer):
                use += ", or FunctionScorer(function, pointwise=True) if it scores each text alone"
            raise ValueError(
                f"{name} is computed over several samples at once, and a mean over batches would "
                f"differ. Use {use}."
            )
        self._names = list(scorer.specs)
        k = len(self._names)
        self.add_state("totals", torch.zeros(k, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(k, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros(k, dtype=torch.int64), dist_reduce_fx="sum")
        if scorer not in _scorer_ids:
            _scorer_ids[scorer] = next(_next_id)
        self.add_state("scorer_id", torch.tensor(_scorer_ids[scorer]), dist_reduce_fx="max")

    def update(
        self, data: SamplesLike | None = None, ids: Sequence[int] | None = None, **columns: Any
    ) -> None:
        """Score n samples and add them up; `ids` are for `ScoreOfAll` in the same collection."""
        samples = as_samples(data, **columns)
        scorer, own, given = self.component.scorer, self.component.name, samples.columns().keys()
        rows = [
            row
            for row, name in enumerate(self._names)
            if name == own or given >= {*scorer.required_columns([name])}
        ]
        scores = score(
            {self._names[row]: scorer[self._names[row]] for row in rows}, samples
        ).warned()
        table = torch.from_numpy(np.stack(list(scores.values())))
        failed = table.isnan()
        self.totals[rows] += table.masked_fill(failed, 0.0).sum(dim=1).to(self.totals)
        self.counts[rows] += (~failed).sum(dim=1).to(self.counts.device)
        self.seen[rows] += len(samples)

    def _index(self) -> int:
        name, seen = self.component.name, self.seen.tolist()
        index = self._names.index(name)
        if seen[index] < max(seen):  # another metric of a collection has updated the states
            columns = ", ".join(self.component.scorer.required_columns([name]))
            raise ValueError(
                f"{name} was computed for {seen[index]} of {max(seen)} samples. Pass {columns} in "
                "every update."
            )
        return index


class ScoreMean(_ScoreSums):
    """Mean of a score over the samples that did not fail; NaN if all failed.

    The component is a score that depends on one sample alone, `ctrleval["coherence"]`, or a scorer
    with a single score. Samples that a distributed sampler repeats count twice.

    Raises:
        ValueError: The score depends on several samples, or the scorer has several scores.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> similarity = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))  # cosine 0.6
        >>> mean = ScoreMean(similarity)
        >>> mean.update(["broth", "soup"], sources="soup")
        >>> mean.update(["soup", "lake"], sources="soup")  # no vector: not in the mean
        >>> round(mean.compute().item(), 3)  # (0.6 + 1 + 1) / 3
        0.867
    """

    def compute(self) -> Tensor:
        """Return the mean, float64."""
        index = self._index()
        return self.totals[index] / self.counts[index]


class FailRate(_ScoreSums):
    """Share of the samples for which a score is NaN, in [0, 1]; NaN without samples.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> fail_rate = FailRate(Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]})))
        >>> fail_rate.update(["broth", "lake"], sources="soup")  # no vector of the second
        >>> fail_rate.compute().item()
        0.5
    """

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """False, whatever the direction of the score."""
        return False

    def compute(self) -> Tensor:
        """Return the rate, float64."""
        index = self._index()
        return 1.0 - self.counts[index].double() / self.seen[index]


class ScoreOfAll(_ScoreMetric):
    """Mean of a score computed over the samples of all ranks together; NaN if all failed.

    For scores that depend on several samples (`distinct["distinct_2"]`): `compute` gathers the
    samples on every rank, and each rank scores all of them.

    Raises:
        ValueError: The scorer has several scores.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> mean = ScoreOfAll(Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]})))
        >>> mean.update(["broth", "soup"], sources="soup", ids=[0, 1])
        >>> mean.update(["soup"], sources="soup", ids=[1])  # repeated by a sampler: counts once
        >>> mean.compute().item()
        0.8
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
        self, data: SamplesLike | None = None, ids: Sequence[int] | None = None, **columns: Any
    ) -> None:
        """Keep n samples until `compute`, with the same columns in all updates on all ranks.

        With `ids`, their indices in the dataset, samples are scored in the dataset's order, and
        those that a sampler repeats count once.
        """
        samples = as_samples(data, **columns)
        if ids is not None and len(ids) != len(samples):
            raise ValueError(
                f"got {len(ids)} ids for {len(samples)} samples, must be one per sample"
            )
        if len(samples):
            update = [None if ids is None else list(map(int, ids)), samples.columns()]
            encoded = bytearray((json.dumps(update) + "\n").encode())
            assert isinstance(self.records, list)
            records = torch.frombuffer(encoded, dtype=torch.uint8)
            self.records.append(records.to(self.device, copy=True))

    def compute(self) -> Tensor:
        """Return the mean of the score, float64; a ValueError if only some updates had ids."""
        content = dim_zero_cat(self.records).cpu().numpy() if len(self.records) else b""
        updates: list[tuple[list[int] | None, dict[str, list[str]]]] = [
            json.loads(line) for line in bytes(content).decode().splitlines()
        ]
        if not updates:
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        samples = Samples.concat(Samples(**columns) for _, columns in updates)
        ids = [i for each, _ in updates for i in each or ()]
        if ids and len(ids) < len(samples):
            raise ValueError(
                f"ids were passed for {len(ids)} of {len(samples)} samples. Pass them in every "
                "update, or in none."
            )
        if ids:
            rows = {i: row for row, i in enumerate(ids)}
            samples = samples[[rows[i] for i in sorted(rows)]]
        values = score({"score": self.component}, samples).warned()["score"]
        return torch.tensor(valid_mean(values), dtype=torch.float64, device=self.device)
