"""Rewards: several named scores combined into one number per sample."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.aggregates import AGGREGATES, Aggregate, Weighted
from ctrlreward.arguments import one_of
from ctrlreward.functional.aggregates import counted_where
from ctrlreward.placement import Worker
from ctrlreward.samples import Samples, SamplesLike, Unfinished, as_samples, shortened
from ctrlreward.scorers.base import LARGEST, Component, Scorer, Scores, score
from ctrlreward.scorers.components import ComponentLike, as_component

# A component, or an object that becomes one, with an optional weight.
Given: TypeAlias = ComponentLike | tuple[ComponentLike, float]
Components: TypeAlias = Mapping[str, Given] | Sequence[Given] | ComponentLike

# Name of a component → name and threshold of the one that it is conditional on.
Conditions: TypeAlias = Mapping[str, tuple[str, float]]


@dataclass(frozen=True)
class RewardBatch:
    """The rewards of one batch of n samples.

    Attributes:
        total: One reward per sample, float64, shape (n,); NaN if it failed.
        components: Each score by name, float64, shape (n,); with a condition the value that counts.
            With `MeanMinusDeviation` also `disagreement`.
        failed: True where a component is NaN, unless it is skipped, or the total is NaN or beyond
            float32, shape (n,).
        seconds: Wall time of scoring.
        reasons: A judge's reasons by component, n of each.

    Examples:
        >>> from ctrlreward import Similarity, WordVectors
        >>> content = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> batch = Reward({"content": content})(["broth", ""], sources="soup")
        >>> batch.total, batch.failed
        (array([0.6, nan]), array([False,  True]))
        >>> batch.statistics()
        {'fail_rate': 0.5, 'total': 0.6, 'total_std': 0.0, 'content': 0.6, 'content_std': 0.0}
    """

    total: Scores
    components: Mapping[str, Scores]
    failed: npt.NDArray[np.bool_]
    seconds: float
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @staticmethod
    def concat(parts: Sequence[RewardBatch]) -> RewardBatch:
        """Concatenate parts that were scored at the same time, so `seconds` is their maximum."""
        names = parts[0].components
        told = dict.fromkeys(name for part in parts for name in part.reasons)
        return RewardBatch(
            np.concatenate([part.total for part in parts]),
            {name: np.concatenate([part.components[name] for part in parts]) for name in names},
            np.concatenate([part.failed for part in parts]),
            max(part.seconds for part in parts),
            {n: [w for p in parts for w in p.reasons.get(n, [""] * len(p.total))] for n in told},
        )

    def __getitem__(self, rows: slice | npt.NDArray[np.intp]) -> RewardBatch:
        kept = np.arange(len(self.total))[rows]
        return replace(
            self,
            total=self.total[rows],
            components={name: values[rows] for name, values in self.components.items()},
            failed=self.failed[rows],
            reasons={name: [texts[i] for i in kept] for name, texts in self.reasons.items()},
        )

    @property
    def incomplete(self) -> npt.NDArray[np.bool_]:
        """True where a sample failed, or a component that is skipped, shape (n,)."""
        return self.failed | np.isnan([*self.components.values()]).any(axis=0)

    def statistics(self) -> dict[str, float]:
        """Return `fail_rate`, in [0, 1], and of the total and each component `<name>` and
        `<name>_std`, mean and standard deviation over the samples that did not fail (NaN if all
        did). The rate counts `incomplete` samples.
        """
        statistics = {"fail_rate": float(self.incomplete.mean()) if len(self.failed) else 0.0}
        for name, values in {"total": self.total, **self.components}.items():
            valid = values[~self.failed & ~np.isnan(values)]
            statistics[name] = float(valid.mean()) if len(valid) else np.nan
            statistics[f"{name}_std"] = float(valid.std()) if len(valid) else np.nan
        return statistics


class AnyReward(ABC):
    """Base of `Reward`, which scores in this process, and `RemoteReward`, which queries a server.

    `components` are by name. `derived` names further columns of its batches. `given` are conditions
    on a sample. `weights` is None unless the reward is a weighted sum.
    """

    components: Mapping[str, Component]
    derived: tuple[str, ...]
    given: Conditions
    weights: Mapping[str, float] | None
    _worker: Worker

    def __call__(self, samples: SamplesLike | None = None, **columns: Any) -> RewardBatch:
        """Score samples, as `as_samples` converts them with `columns`, in the calling thread."""
        return self._score(as_samples(samples, **columns))

    def __getitem__(self, name: str) -> Component:
        """Return a component, for callbacks and adapters; a KeyError lists the existing ones."""
        if name not in self.components:
            raise KeyError(f"no component {name!r}; the reward has {', '.join(self.components)}")
        return self.components[name]

    def submit(self, samples: SamplesLike | None = None, **columns: Any) -> Future[RewardBatch]:
        """Score samples on the background thread; the future returns or raises like a call."""
        return self._worker.submit(self._score, as_samples(samples, **columns))

    @abstractmethod
    def load(self) -> None:
        """Load all models now; without it, the first scoring loads them."""

    @abstractmethod
    def release(self) -> None:
        """End the background thread and free all models; a later call loads them again."""

    @abstractmethod
    def _score(self, samples: Samples) -> RewardBatch:
        """Return the rewards of n samples."""


class Reward(AnyReward):
    """Several components combined into one reward per sample; higher is better.

    Repeated samples are scored once, and scorers that share a model share its forward passes.

    Args:
        components: Name → component or (component, weight). A component is `scorer["coherence"]`,
            a scorer with a single score, or a plain function (see `FunctionScorer`). Also one
            component, or a list of them, which are named by their scores.
        aggregate: An aggregate of `ctrlreward.aggregates`, or its name: `"weighted"`, the sum of
            weight × score (`Weighted`); `"gm"`, the adjusted geometric mean of an accuracy, a
            similarity and a perplexity (`GM`); `"min"`, the lowest score (`Minimum`);
            `"mean_minus_deviation"` (`MeanMinusDeviation`). Or a callable that maps the scores by
            name, each of shape (n,), to totals of shape (n,).
        device: Device to move all scorers to; None keeps the devices.
        given: Name of a component → another one's and a threshold: the component counts only for
            samples where the other one reaches it, and is 0 otherwise (GDPO, Liu et al. 2026, eq.
            8). A loss counts everywhere, so that no sample gains by failing a condition. If the
            condition fails (NaN), so does the component.
        failed: What becomes of a sample with a component that is NaN: it fails (`"fail"`), or the
            others decide and it fails if all are NaN (`"skip"`), which `"min"`,
            `"mean_minus_deviation"` and callables allow.
        answer_after: End of the reasoning in each completion, such as `"</think>"`: components read
            what follows, the answer. None: as the samples say.
        unfinished: Whether a completion without an answer counts as a whole (`"score"`) or fails
            (`"fail"`). None: as the samples say.

    Examples:
        >>> from ctrlreward import Perplexity, Similarity, WordVectors
        >>> content = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> Reward({"content": (content, 2.0)})(["broth", "soup"], sources="soup").total
        array([1.2, 2. ])
        >>> reward = Reward({"content": content, "fluency": (Perplexity()["log_likelihood"], 0.1)})
        >>> reward.weights
        {'content': 1.0, 'fluency': 0.1}
        >>> def brevity(texts):
        ...     return [-float(len(text)) for text in texts]
        >>> Reward(brevity)(["Good soup."]).total  # as is Reward({"brevity": brevity})
        array([-10.])
    """

    def __init__(
        self,
        components: Components,
        aggregate: Literal["weighted", "gm", "min", "mean_minus_deviation"]
        | Aggregate
        | Callable[[Mapping[str, Scores]], Scores] = "weighted",
        device: str | None = None,
        given: Conditions | None = None,
        failed: Literal["fail", "skip"] = "fail",
        answer_after: str | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        self.components, weights = _split(components)
        if isinstance(aggregate, str):
            aggregate = AGGREGATES[one_of("aggregate", aggregate, AGGREGATES)]()
        if weights and not isinstance(aggregate, Weighted):
            raise ValueError(f"the aggregate takes no weights, as {', '.join(weights)} have")
        if isinstance(aggregate, Weighted):
            aggregate = Weighted({**aggregate.weights, **weights})
        if isinstance(aggregate, Aggregate):
            aggregate = aggregate.check(self.components)
        elif not callable(aggregate) or isinstance(aggregate, Component | Scorer | type):
            raise TypeError(
                f"aggregate must be a name, an aggregate or a callable, got {shortened(aggregate)}"
            )
        self.aggregate = aggregate
        self.skips = one_of("failed", failed, ("fail", "skip")) == "skip"
        if self.skips and isinstance(aggregate, Aggregate) and not aggregate.skips:
            name = type(aggregate).__name__
            raise ValueError(f"failed must be 'fail' for {name}, which needs all its terms")
        self.derived = aggregate.derived if isinstance(aggregate, Aggregate) else ()
        self.weights = aggregate.weights if isinstance(aggregate, Weighted) else None
        self.given = _checked_conditions(self.components, given or {})
        self.answer_after, self.unfinished = answer_after, unfinished
        self.device = device
        if device is not None:
            for scorer in self._scorers():
                scorer.to(device)
        self._worker = Worker()

    def load(self) -> None:
        """Load all models now: before `submit` on a thread, since this may draw random numbers."""
        for scorer in self._scorers():
            scorer.load()

    def release(self) -> None:
        self._worker.close(cancel=True)
        for scorer in self._scorers():
            scorer.release()

    def combine(
        self, components: Mapping[str, Scores], seconds: float, samples: Samples
    ) -> RewardBatch:
        """Return the rewards of samples whose scores are known; see `RewardBatch`."""
        scores = dict(components)
        for name, (condition, at_least) in self.given.items():
            higher = self.components[name].spec.higher_is_better
            scores[name] = counted_where(scores[name], scores[condition], at_least, higher)
        n = len(next(iter(scores.values())))
        total = np.asarray(self.aggregate(scores), dtype=np.float64)
        if total.shape != (n,):
            raise ValueError(f"aggregate must return shape ({n},), got {total.shape}")
        failed = ~(np.abs(total) <= LARGEST)  # True for NaN
        if not self.skips:
            failed |= np.isnan([*scores.values()]).any(axis=0)
        if isinstance(self.aggregate, Aggregate):
            further = self.aggregate.further(scores).items()
            scores |= {name: np.where(failed, np.nan, values) for name, values in further}
        return RewardBatch(np.where(failed, np.nan, total), scores, failed, seconds)

    def _score(self, samples: Samples) -> RewardBatch:
        started = time.perf_counter()
        from ctrlreward.models.accelerators import scoring_stream  # with torch

        found = scoring_stream(self.device)(score)(self.components, self.as_read(samples))
        batch = self.combine(found.warned(), time.perf_counter() - started, samples)
        return replace(batch, reasons=found.reasons)

    def as_read(self, samples: Samples) -> Samples:
        """Return samples with this reward's `answer_after` and `unfinished`, if it has them."""
        return samples.read_after(self.answer_after, self.unfinished)

    def _scorers(self) -> list[Scorer]:
        return list(dict.fromkeys(component.scorer for component in self.components.values()))


RewardLike: TypeAlias = AnyReward | Components


def as_reward(given: RewardLike) -> AnyReward:
    """Return a reward unchanged, or `Reward(given)`."""
    return given if isinstance(given, AnyReward) else Reward(given)


def _split(components: Components) -> tuple[dict[str, Component], dict[str, float]]:
    """Return the components and the given weights, by name."""
    places: list[tuple[str, str | None, Any]] = [("the reward", None, components)]
    if isinstance(components, Mapping):
        places = [(f"components[{name!r}]", name, given) for name, given in components.items()]
    elif isinstance(components, list):
        places = [(f"components[{i}]", None, given) for i, given in enumerate(components)]
    split: dict[str, Component] = {}
    weights: dict[str, float] = {}
    for place, name, given in places:
        component, weight = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(weight, Real | None):
            raise TypeError(f"the weight of {place} must be a number, got {shortened(weight)}")
        if isinstance(component, AnyReward):
            raise TypeError(f"{place} must be a component, such as reward['name'], got a reward")
        component = as_component(place, component)
        name = component.name if name is None else name
        if name in split:
            raise ValueError(f"{place} is the second component named {name!r}: pass a mapping")
        split[name] = component
        if weight is not None:
            weights[name] = float(weight)
    if not split:
        raise ValueError("components is empty, must have at least one scorer['name'] or function")
    return split, weights


def fit_scales(
    components: RewardLike, samples: SamplesLike | None = None, **columns: Any
) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation of each component on good texts, for `scales`.

    Args:
        components: Components, as for `Reward`, or a reward.
        samples: Examples of good output, or outputs of the policy before training. Failed ones are
            left out.
        **columns: Columns of the samples, as in a call of a reward.

    Raises:
        ValueError: A component is equal for all texts, or fails for all.

    Examples:
        >>> def words(texts):
        ...     return [len(text.split()) for text in texts]
        >>> fit_scales({"words": words}, ["The soup.", "The soup was very good."])
        {'words': (3.5, 1.5)}
    """
    reward = as_reward(components)
    batch = reward(samples, **columns)
    scales = {}
    for name in reward.components:
        valid = batch.components[name][~np.isnan(batch.components[name])]
        deviation = float(valid.std()) if len(valid) else 0.0
        # Equal values have a deviation by rounding: 1e-17 for several 0.1.
        if not deviation > np.finfo(np.float32).eps * np.abs(valid).max(initial=0.0):
            raise ValueError(f"{name} must differ between texts, got {valid[:3].tolist()}")
        scales[name] = (float(valid.mean()), deviation)
    return scales


def _checked_conditions(
    components: Mapping[str, Component], given: Conditions
) -> dict[str, tuple[str, float]]:
    """Return conditions that can be met; a ValueError for others."""
    pairs: Mapping[str, Any] = given
    for name, pair in pairs.items():
        place = f"given[{name!r}] = {shortened(pair)}"
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[1], Real)):
            raise TypeError(f"{place} must be a component and a threshold")
        condition, at_least = pair
        for each in (name, condition):
            one_of(f"{place}: a component", each, components)
        if condition in given:
            raise ValueError(f"{place}: {condition} must have no condition of its own")
        if not (components[condition].spec.higher_is_better and np.isfinite(at_least)):
            raise ValueError(f"{place}: must be a score that is better when higher, and finite")
        spec = components[name].spec
        if (spec.range[1] <= 0) if spec.higher_is_better else (spec.range[0] >= 0):
            raise ValueError(f"{place}: {name}, in {spec.range}, must be able to exceed 0")
    return {name: (condition, float(at_least)) for name, (condition, at_least) in given.items()}
