"""Rewards: several named scores combined into one number per sample."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import one_of
from ctrlreward.functional.transfer import GM_THRESHOLDS, gm_of
from ctrlreward.placement import Worker
from ctrlreward.processor.accelerators import scoring_stream
from ctrlreward.samples import SampleKeywords, Samples, SamplesLike, as_samples, shortened
from ctrlreward.scorers.base import Component, Scorer, Scores, score
from ctrlreward.scorers.components import ComponentLike, as_component

Aggregate = Callable[[Mapping[str, Scores]], Scores]

# A component, or what becomes one, with its weight where it has one.
Given: TypeAlias = ComponentLike | tuple[ComponentLike, float]
Components: TypeAlias = Mapping[str, Given] | Sequence[Given] | ComponentLike

Thresholds: TypeAlias = tuple[float, float, float, float]
AggregateName: TypeAlias = Literal["weighted", "gm", "min", "geometric_mean"]
AccuracyScore: TypeAlias = Literal["accuracy", "label_probability"]


@dataclass(frozen=True)
class RewardBatch:
    """The rewards of one batch of n samples.

    Attributes:
        total: One reward per sample, float64, shape (n,); NaN where it failed.
        components: Each named score as its scorer returned it, float64, shape (n,).
        failed: True where a component is NaN or the total is not finite, shape (n,).
        seconds: Wall time of scoring.

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

    @staticmethod
    def concat(parts: Sequence[RewardBatch]) -> RewardBatch:
        """Concatenate parts that were scored at the same time, so `seconds` is their maximum."""
        return RewardBatch(
            np.concatenate([part.total for part in parts]),
            {
                name: np.concatenate([part.components[name] for part in parts])
                for name in parts[0].components
            },
            np.concatenate([part.failed for part in parts]),
            max(part.seconds for part in parts),
        )

    def __getitem__(self, rows: slice | npt.NDArray[np.intp]) -> RewardBatch:
        """Return the rewards of some samples."""
        components = {name: values[rows] for name, values in self.components.items()}
        return RewardBatch(self.total[rows], components, self.failed[rows], self.seconds)

    def statistics(self) -> dict[str, float]:
        """Return `fail_rate`, in [0, 1], and mean and standard deviation of total and components.

        The means (`<name>`) and standard deviations (`<name>_std`) are over the samples that did
        not fail; NaN if all failed.
        """
        valid = ~self.failed
        statistics = {"fail_rate": float(self.failed.mean()) if len(self.failed) else 0.0}
        for name, values in {"total": self.total, **self.components}.items():
            statistics[name] = float(values[valid].mean()) if valid.any() else np.nan
            statistics[f"{name}_std"] = float(values[valid].std()) if valid.any() else np.nan
        return statistics


class AnyReward(ABC):
    """Base of `Reward`, which scores in this process, and `RemoteReward`, which asks a server.

    `components` are by name; `reward["relevance"]` is one. `weights` belong to a weighted
    reward, `thresholds` (t1 to t4) and `accuracy_score` to `"gm"`; None with other
    aggregates.
    """

    components: Mapping[str, Component]
    weights: Mapping[str, float] | None
    thresholds: Thresholds | None
    accuracy_score: AccuracyScore | None
    _worker: Worker

    def __call__(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> RewardBatch:
        """Score samples, as `as_samples` converts them with `columns`, in the calling thread.

        Raises:
            Exception: Any exception of a scorer, or of `as_samples`.
            ValueError: A scorer or the aggregate does not return one value per sample.
        """
        return self._score(as_samples(samples, **columns))

    def __getitem__(self, name: str) -> Component:
        """Return a component, for callbacks and adapters; a KeyError lists those that exist."""
        if name not in self.components:
            raise KeyError(f"no component {name!r}; the reward has {', '.join(self.components)}")
        return self.components[name]

    def submit(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> Future[RewardBatch]:
        """Score samples on the background thread; the future returns or raises as a call does."""
        return self._worker.submit(self._score, as_samples(samples, **columns))

    def yield_cpu(self) -> None:
        """Let the worker of a later `submit` yield the CPU to training (`Worker.yield_cpu`)."""
        self._worker.yield_cpu()

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

    A call scores in the caller's thread, `submit` on a background thread; on a CUDA device both
    use a stream of their own. Repeated samples are scored once, and scorers that share a model
    share its forward passes.

    Args:
        components: Name → component or (component, weight). A component is `scorer["coherence"]`,
            a scorer with a single score, or a plain function (`FunctionScorer` says how it is
            called). Also one component, or a list of them, which are named by their scores.
        aggregate: `"weighted"`: the sum of weight × score. The default weight is 1, or -1 for a
            score that is better when lower. `"gm"`: the adjusted geometric mean of an accuracy, a
            similarity and a perplexity (Pang & Gimpel 2019, eq. 1). As the accuracy, give either
            `accuracy`, the decision (0 or 1 for a sentence), or `label_probability`, which is
            graded above t1. `"min"`: the lowest score, so that no component can be traded for
            another; all must be better when higher, and should have one scale.
            `"geometric_mean"`: of scores such as the relevance of several attributes, which must be
            0 or more and better when higher; a low one costs most. Or a callable that
            maps the scores by name, each of shape (n,), to totals of shape (n,).
        device: Device to move all scorers to; None leaves each where it is.
        thresholds: t1 to t4 of `"gm"`; None takes the paper's, which fit its own classifier, word
            vectors and language model. With t1 ≥ 0, a copied input of the other style earns 0.

    Attributes:
        aggregate: The function from scores by name to totals. The others are those of `AnyReward`.

    Raises:
        TypeError: `components` is none of these.
        ValueError: No components, two of one name, a scorer with several scores, a weight that
            rewards the wrong direction, weights with another aggregate than `"weighted"`,
            components that `"gm"` or `"min"` can't combine, thresholds with another aggregate than
            `"gm"`, or not four of them.

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
        >>> from ctrlreward import Accuracy, CTRLEval
        >>> style = Accuracy(CTRLEval(task="sentiment"))["label_probability"]
        >>> parts = {"style": style, "content": content, "fluency": Perplexity()["perplexity"]}
        >>> gm = Reward(parts, aggregate="gm", thresholds=(50, 40, 200, -140))
        >>> gm.accuracy_score, gm.thresholds
        ('label_probability', (50.0, 40.0, 200.0, -140.0))
    """

    def __init__(
        self,
        components: Components,
        aggregate: AggregateName | Aggregate = "weighted",
        device: str | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        self.components, given_weights = _split(components)
        self.weights: dict[str, float] | None = None
        self.thresholds: Thresholds | None = None
        self.accuracy_score: AccuracyScore | None = None
        if not callable(aggregate):
            one_of("aggregate", aggregate, (*get_args(AggregateName), "a callable"))
        if thresholds is not None and aggregate != "gm":
            raise ValueError(f"aggregate = {aggregate!r} takes no thresholds: only 'gm' does")
        if given_weights and aggregate != "weighted":
            raise ValueError(
                f"aggregate = {aggregate!r} takes no weights (given for "
                f"{', '.join(given_weights)}): give the components alone"
            )
        # Partials instead of closures, so that a reward can be pickled.
        self.aggregate: Aggregate
        if aggregate == "weighted":
            self.weights = {
                name: given_weights.get(name, 1.0 if c.spec.higher_is_better else -1.0)
                for name, c in self.components.items()
            }
            for name, weight in self.weights.items():
                check_direction(name, self.components[name], weight)
            self.aggregate = partial(weighted_sum, self.weights)
        elif aggregate == "min":
            for name, component in self.components.items():
                if not component.spec.higher_is_better:
                    raise ValueError(
                        f"aggregate = 'min' rewards the lowest score, and {name} is better when "
                        "lower: give a score that is better when higher, such as log_likelihood, "
                        "or a callable"
                    )
            self.aggregate = lowest
        elif aggregate == "geometric_mean":
            for name, component in self.components.items():
                spec = component.spec
                if not spec.higher_is_better or spec.range[0] < 0:
                    raise ValueError(
                        f"aggregate = 'geometric_mean' takes scores that are 0 or more and better "
                        f"when higher, and {name} has the range {spec.range}: give a probability, "
                        "or another aggregate"
                    )
            self.aggregate = geometric_mean
        elif aggregate == "gm":
            self.thresholds = _four_numbers(thresholds or GM_THRESHOLDS)
            self.accuracy_score, names = _gm_components(self.components)
            self.aggregate = partial(gm_of, names, self.thresholds)
        else:
            self.aggregate = aggregate
        self.device = device
        if device is not None:
            for scorer in self._scorers():
                scorer.to(device)
        self._worker = Worker()

    def load(self) -> None:
        """Load all models now, on this thread; without it, the first scoring loads them.

        Building a model may draw random numbers: call this before `submit` if their state matters.
        """
        for scorer in self._scorers():
            scorer.load()

    def release(self) -> None:
        """End the background thread and free all models; a later call loads them again."""
        self._worker.close(cancel=True)
        for scorer in self._scorers():
            scorer.release()

    def combine(self, components: Mapping[str, Scores], seconds: float) -> RewardBatch:
        """Return the rewards of samples whose scores are known; see `RewardBatch`."""
        n = len(next(iter(components.values())))
        total = np.asarray(self.aggregate(components), dtype=np.float64)
        if total.shape != (n,):
            problem = f"aggregate returned shape {total.shape} for {n} samples"
            raise ValueError(f"{problem}: return one number per sample")
        failed = ~np.isfinite(total) | np.isnan([*components.values()]).any(axis=0)
        return RewardBatch(np.where(failed, np.nan, total), components, failed, seconds)

    def _score(self, samples: Samples) -> RewardBatch:
        started = time.perf_counter()
        with scoring_stream(self.device):
            components = score(self.components, samples)
        return self.combine(components, time.perf_counter() - started)

    def _scorers(self) -> list[Scorer]:
        return list(dict.fromkeys(component.scorer for component in self.components.values()))


RewardLike: TypeAlias = AnyReward | Components


def as_reward(given: RewardLike) -> AnyReward:
    """Return a reward as it is, or `Reward(given)`.

    Examples:
        >>> def brevity(texts):
        ...     return [-float(len(text)) for text in texts]
        >>> as_reward(brevity)(["Soup.", "Good soup."]).total
        array([ -5., -10.])
    """
    return given if isinstance(given, AnyReward) else Reward(given)


def _split(components: Components) -> tuple[dict[str, Component], dict[str, float]]:
    """Return the components and the weights that were given, by name."""
    places: list[tuple[str, str | None, Any]] = [("the reward", None, components)]
    if isinstance(components, Mapping):
        places = [(f"components[{name!r}]", name, given) for name, given in components.items()]
    elif isinstance(components, list):
        places = [(f"components[{i}]", None, given) for i, given in enumerate(components)]
    split: dict[str, Component] = {}
    weights: dict[str, float] = {}
    for place, name, given in places:
        component, weight = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if isinstance(component, tuple):
            raise TypeError(f"{place} has {len(component)} items, must be (component, weight)")
        if not isinstance(weight, Real | None):
            raise TypeError(f"{place} has the weight {shortened(weight)}, must be a number")
        if isinstance(component, AnyReward):
            raise TypeError(f"{place} is a Reward: give its components, such as reward['name']")
        component = as_component(place, component)
        name = component.name if name is None else name
        if name in split:
            raise ValueError(
                f"{place} is the second component named {name!r}: give a mapping, name → component"
            )
        split[name] = component
        if weight is not None:
            weights[name] = float(weight)
    if not split:
        raise ValueError("components is empty: give at least one scorer['name'] or function")
    return split, weights


def weighted_sum(weights: Mapping[str, float], scores: Mapping[str, Scores]) -> Scores:
    """Return the sum of weight × score over the names in `weights`, shape (n,)."""
    return np.sum([weight * scores[name] for name, weight in weights.items()], axis=0)


def lowest(scores: Mapping[str, Scores]) -> Scores:
    """Return the lowest of the scores of each sample, shape (n,); NaN if one is."""
    return np.min([*scores.values()], axis=0)


def geometric_mean(scores: Mapping[str, Scores]) -> Scores:
    """Return the geometric mean of the scores of each sample, ≥ 0, shape (n,); NaN if one is."""
    stacked = np.stack([*scores.values()])
    with np.errstate(divide="ignore"):  # the logarithm of 0
        mean: Scores = np.exp(np.log(stacked).mean(axis=0))
    return mean


def check_direction(name: str, component: Component, weight: float) -> None:
    """Raise if a weight rewards the wrong direction of a score; a weight of 0 is allowed."""
    better = "higher" if component.spec.higher_is_better else "lower"
    if (weight if better == "higher" else -weight) < 0:
        raise ValueError(
            f"{name} is better when {better}, but its weight {weight} rewards the opposite: "
            f"give {-weight}"
        )


def _gm_components(components: Mapping[str, Component]) -> tuple[AccuracyScore, tuple[str, ...]]:
    """Return the score that stands for accuracy, and the names of the three in eq. 1's order."""
    score_names = [component.name for component in components.values()]
    keys = dict(zip(score_names, components, strict=True))
    for accuracy in get_args(AccuracyScore):
        wanted = (accuracy, "similarity", "perplexity")
        if sorted(score_names) == sorted(wanted):
            return accuracy, tuple(keys[name] for name in wanted)
    raise ValueError(
        "aggregate = 'gm' combines one accuracy or label_probability, one similarity and one "
        f"perplexity, but the components are {', '.join(score_names)}: give these three, or "
        "'geometric_mean' for the plain mean of other scores"
    )


def _four_numbers(thresholds: Sequence[float]) -> Thresholds:
    values = tuple(float(value) for value in thresholds)
    if len(values) != 4 or not np.isfinite(values).all():
        raise ValueError(f"thresholds = {values}: give four numbers, t1 to t4")
    return values
