"""Aggregates: named scores of a sample combined into its total."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeAlias

import numpy as np

from ctrlreward.arguments import not_negative, one_of
from ctrlreward.functional.aggregates import disagreement, mean_minus_deviation
from ctrlreward.functional.transfer import GM_THRESHOLDS, checked_thresholds, gm_of
from ctrlreward.scorers.base import Component, Scores

# Component → mean and deviation of its score on good texts.
Scales: TypeAlias = Mapping[str, tuple[float, float]]

# Column of a `RewardBatch` with the deviation of an ensemble's members.
DISAGREEMENT = "disagreement"


class Aggregate(ABC):
    """A fold of named scores, float64 of shape (n,), into totals of n samples, higher is better.

    An object of a subclass of one's own is an `aggregate` of a `Reward` like the ones here.
    """

    derived: tuple[str, ...] = ()  # names of the columns of `further`
    skips: ClassVar[bool] = False  # whether it combines the other scores of a sample if one is NaN

    @abstractmethod
    def check(self, components: Mapping[str, Component]) -> Self:
        """Return the aggregate for these components; a ValueError if it can't combine them."""

    @abstractmethod
    def __call__(self, scores: Mapping[str, Scores]) -> Scores:
        """Return the totals, (n,); NaN where a score is, or if it `skips` these, where all are."""

    def further(self, scores: Mapping[str, Scores]) -> dict[str, Scores]:
        """Return further columns of the batch."""
        return {}


@dataclass(frozen=True)
class Weighted(Aggregate):
    """The sum of weight × score.

    Args:
        weights: Component → weight. The default is 1, or -1 for a score that is better when lower.
    """

    weights: Mapping[str, float] = field(default_factory=dict)

    def check(self, components: Mapping[str, Component]) -> Weighted:
        for name, weight in self.weights.items():
            spec = components[one_of("each key of weights", name, components)].spec
            higher = spec.higher_is_better
            if not 0 <= (weight if higher else -weight) < np.inf:
                must = "0 or more, as higher" if higher else "0 or less, as lower"
                raise ValueError(f"the weight of {name} must be {must} is better, got {weight}")
        default = {name: 1.0 if c.spec.higher_is_better else -1.0 for name, c in components.items()}
        return Weighted({name: float(self.weights.get(name, w)) for name, w in default.items()})

    def __call__(self, scores: Mapping[str, Scores]) -> Scores:
        return np.sum([weight * scores[name] for name, weight in self.weights.items()], axis=0)


@dataclass(frozen=True)
class GM(Aggregate):
    """The adjusted geometric mean of an accuracy, a similarity and a perplexity.

    Pang & Gimpel (2019), eq. 1, https://arxiv.org/abs/1810.11878. The accuracy is `accuracy`, the
    decision, or `label_probability`, which is graded above t1.

    Args:
        thresholds: t1 to t4; the default is the paper's, which fit its classifier, word vectors and
            language model. With t1 ≥ 0, a copied input of the other style has reward 0. With
            t4 ≤ 2 - t3, fluent texts always have more (`adjusted_gm`).
        names: The three components, in the order of eq. 1; found by `check` if left out.
    """

    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", checked_thresholds(self.thresholds))

    def check(self, components: Mapping[str, Component]) -> GM:
        keys = {component.name: name for name, component in components.items()}
        for accuracy in ("accuracy", "label_probability"):
            wanted = (accuracy, "similarity", "perplexity")
            if keys.keys() == {*wanted} and len(components) == 3:
                return replace(self, names=tuple(keys[name] for name in wanted))
        raise ValueError(
            "components of GM must be one accuracy or label_probability, one similarity and one "
            f"perplexity, got {', '.join(c.name for c in components.values())}"
        )

    def __call__(self, scores: Mapping[str, Scores]) -> Scores:
        return gm_of(self.names, self.thresholds, scores)


@dataclass(frozen=True)
class Minimum(Aggregate):
    """The lowest score: worst-case optimisation of an ensemble (Coste et al. 2023).

    https://arxiv.org/abs/2310.02743. The scores need a common scale. NaN is skipped.

    Args:
        scales: Component → mean and standard deviation on good texts, as `fit_scales` returns
            them: each score becomes the number of deviations by which it is better than the mean.
            None compares scores as they are, which must be better when higher.
    """

    scales: Scales | None = None
    signs: Mapping[str, int] = field(default_factory=dict, kw_only=True, repr=False)  # by check

    skips = True

    def check(self, components: Mapping[str, Component]) -> Self:
        signs = {n: 1 if c.spec.higher_is_better else -1 for n, c in components.items()}
        if self.scales is None:
            if lower := [name for name, sign in signs.items() if sign < 0]:
                raise ValueError(f"scales must be given, as {lower[0]} is better when lower")
        elif self.scales.keys() != components.keys():
            raise ValueError(f"scales must be of {[*components]}, got {[*self.scales]}")
        for name, (mean, deviation) in (self.scales or {}).items():
            if not (np.isfinite(mean) and 0 < deviation < np.inf):
                must = "must be a mean and a positive deviation"
                raise ValueError(f"scales[{name!r}] {must}, got {(mean, deviation)}")
        return replace(self, signs=signs)

    def members(self, scores: Mapping[str, Scores]) -> Scores:
        """Return the scores on one scale, higher is better, shape (members, n), NaN masked."""
        scales = self.scales or dict.fromkeys(self.signs, (0.0, 1.0))
        table = np.stack(
            [
                sign * (scores[name] - scales[name][0]) / scales[name][1]
                for name, sign in self.signs.items()
            ]
        )
        return np.ma.masked_invalid(table)

    def __call__(self, scores: Mapping[str, Scores]) -> Scores:
        return np.ma.filled(self.members(scores).min(axis=0), np.nan)


@dataclass(frozen=True)
class MeanMinusDeviation(Minimum):
    """The mean minus λ · the standard deviation of scores that measure the same with other models.

    Uncertainty-weighted optimisation (Coste et al. 2023), with the deviation, the `disagreement`,
    in place of the paper's variance. The scores need a common scale: `scales`, or scores of one
    range that are better when higher.

    Args:
        scales: As in `Minimum`.
        penalty: λ ≥ 0.
    """

    penalty: float = 1.0

    derived = (DISAGREEMENT,)

    def __post_init__(self) -> None:
        not_negative("penalty", self.penalty)

    def check(self, components: Mapping[str, Component]) -> Self:
        ranges = {component.spec.range for component in components.values()}
        if self.scales is None and len(ranges) > 1:
            raise ValueError(f"scales must be given for scores of several ranges, got {ranges}")
        return super().check(components)

    def __call__(self, scores: Mapping[str, Scores]) -> Scores:
        return np.ma.filled(mean_minus_deviation(self.members(scores), self.penalty), np.nan)

    def further(self, scores: Mapping[str, Scores]) -> dict[str, Scores]:
        """Return the standard deviation of the members."""
        return {DISAGREEMENT: np.ma.filled(disagreement(self.members(scores)), np.nan)}


AGGREGATES: dict[str, type[Aggregate]] = {
    "weighted": Weighted,
    "gm": GM,
    "min": Minimum,
    "mean_minus_deviation": MeanMinusDeviation,
}
