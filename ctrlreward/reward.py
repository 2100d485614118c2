"""Rewards: several named scores combined into one number per sample."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import did_you_mean, not_negative, one_of
from ctrlreward.engine.accelerators import scoring_stream
from ctrlreward.functional.aggregates import counted_where, disagreement, mean_minus_deviation
from ctrlreward.functional.transfer import GM_THRESHOLDS, checked_thresholds, gm_of
from ctrlreward.placement import Worker
from ctrlreward.samples import SampleKeywords, Samples, SamplesLike, as_samples, shortened
from ctrlreward.scorers.base import (
    LARGEST,
    METHODS_OF_METRICS,
    Component,
    Scorer,
    Scores,
    reasons_of,
    score,
)
from ctrlreward.scorers.components import ComponentLike, as_component

Aggregate = Callable[[Mapping[str, Scores]], Scores]

# A component, or an object that becomes one, with an optional weight.
Given: TypeAlias = ComponentLike | tuple[ComponentLike, float]
Components: TypeAlias = Mapping[str, Given] | Sequence[Given] | ComponentLike

Thresholds: TypeAlias = tuple[float, float, float, float]
AggregateName: TypeAlias = Literal[
    "weighted", "gm", "min", "mean_minus_deviation", "geometric_mean"
]
AccuracyScore: TypeAlias = Literal["accuracy", "label_probability"]
Scales: TypeAlias = Mapping[str, tuple[float, float]]

# The aggregates of an ensemble: members that measure the same, on one scale.
_ENSEMBLES = ("min", "mean_minus_deviation")
# The aggregates that take an option.
_TAKES = {"thresholds": ("gm",), "scales": _ENSEMBLES, "penalty": ("mean_minus_deviation",)}

# Column of a `RewardBatch` with the deviation of an ensemble's members.
DISAGREEMENT = "disagreement"


@dataclass(frozen=True)
class RewardBatch:
    """The rewards of one batch of n samples.

    Attributes:
        total: One reward per sample, float64, shape (n,); NaN if it failed.
        components: Each score by name, float64, shape (n,); with a condition the value that counts.
            With the aggregate `"mean_minus_deviation"` also `disagreement`.
        failed: True where a component is NaN, or the total is NaN or beyond float32, shape (n,).
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
        """Return the rewards of some samples."""
        kept = np.arange(len(self.total))[rows]
        return replace(
            self,
            total=self.total[rows],
            components={name: values[rows] for name, values in self.components.items()},
            failed=self.failed[rows],
            reasons={name: [texts[i] for i in kept] for name, texts in self.reasons.items()},
        )

    def statistics(self) -> dict[str, float]:
        """Return `fail_rate`, in [0, 1], and of the total and each component `<name>` and
        `<name>_std`, mean and standard deviation over the samples that did not fail (NaN if all
        did).
        """
        statistics = {"fail_rate": float(self.failed.mean()) if len(self.failed) else 0.0}
        for name, values in {"total": self.total, **self.components}.items():
            valid = values[~self.failed]
            statistics[name] = float(valid.mean()) if len(valid) else np.nan
            statistics[f"{name}_std"] = float(valid.std()) if len(valid) else np.nan
        return statistics


class AnyReward(ABC):
    """Base of `Reward`, which scores in this process, and `RemoteReward`, which queries a server.

    `components` are by name, `derived` the names of the further columns of its batches. `weights`
    belong to a weighted reward, `thresholds` (t1 to t4) and `accuracy_score` to `"gm"`; else None.
    """

    components: Mapping[str, Component]
    derived: tuple[str, ...]
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
        """Return a component, for callbacks and adapters; a KeyError lists the existing ones."""
        if name not in self.components:
            raise KeyError(f"no component {name!r}; the reward has {', '.join(self.components)}")
        return self.components[name]

    if not TYPE_CHECKING:  # a type checker would assume that the class has every attribute

        def __getattr__(self, name: str) -> Any:
            if name in ("score", *METHODS_OF_METRICS):
                raise AttributeError(
                    f"{type(self).__name__} has no method {name!r}. Call reward(texts, ...).total, "
                    "one reward per text, or .components[name]."
                )
            return object.__getattribute__(self, name)  # raises the error again

    def submit(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> Future[RewardBatch]:
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
        aggregate: One of

            - `"weighted"`: the sum of weight × score. The default weight is 1, or -1 for a score
              that is better when lower.
            - `"gm"`: the adjusted geometric mean of an accuracy, a similarity and a perplexity
              (Pang & Gimpel 2019, eq. 1). The accuracy is `accuracy`, the decision, or
              `label_probability`, which is graded above t1.
            - `"min"`: the lowest score (worst-case optimisation of Coste et al. 2023).
            - `"mean_minus_deviation"`: the mean minus `penalty` times the standard deviation, the
              `disagreement`, of components that measure the same with different models
              (uncertainty-weighted optimisation, with the deviation in place of the paper's
              variance). Like `"min"` it needs a common scale: `scales`, or scores that are better
              when higher and have one range.
            - `"geometric_mean"`: of scores of 0 or more that are better when higher.
            - A callable that maps the scores by name, each of shape (n,), to totals of shape (n,).
        device: Device to move all scorers to; None keeps the devices.
        thresholds: t1 to t4 of `"gm"`; None takes the paper's, which fit its classifier, word
            vectors and language model. With t1 ≥ 0, a copied input of the other style has reward 0.
        scales: Component → mean and standard deviation on good texts, as `fit_scales` returns
            them: each score becomes the number of deviations by which it is better than the mean.
        penalty: λ of `"mean_minus_deviation"`, ≥ 0; None takes 1.

    A `Component` with `given` and `at_least` counts only for samples where the named component
    reaches the threshold, and is 0 otherwise (GDPO, Liu et al. 2026, eq. 8). A loss counts
    everywhere, so that no sample gains by failing a condition. If the condition fails (NaN), so
    does the sample.

    Attributes:
        aggregate: The function from scores by name to totals. For others see `AnyReward`.

    Raises:
        TypeError: `components` is of another type.
        ValueError: No components, two of one name, a scorer with several scores, a weight that
            rewards the wrong direction, components that the aggregate can't combine, an option
            that it doesn't take, or a condition that can't be met.

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
        aggregate: AggregateName | Aggregate = "weighted",
        device: str | None = None,
        thresholds: Thresholds | None = None,
        scales: Scales | None = None,
        penalty: float | None = None,
    ) -> None:
        self.components, given_weights = _split(components)
        self._conditional = conditions(self.components)
        self.derived = ()
        self.weights = self.thresholds = self.accuracy_score = None
        if isinstance(aggregate, Component | Scorer):
            raise TypeError(f"aggregate = {aggregate!r:.60}. Pass several components as a list.")
        if not callable(aggregate):
            one_of("aggregate", str(aggregate), (*get_args(AggregateName), "a callable"))
        options = {"thresholds": thresholds, "scales": scales, "penalty": penalty}
        for name, given in options.items():
            if given is not None and aggregate not in _TAKES[name]:
                raise ValueError(
                    f"aggregate = {aggregate!r} does not take {name}, only "
                    f"{' and '.join(map(repr, _TAKES[name]))} can."
                )
        not_negative("penalty", penalty)
        if given_weights and aggregate != "weighted":
            raise ValueError(
                f"aggregate = {aggregate!r} does not take weights, got weights for "
                f"{', '.join(given_weights)}. Pass these components without a weight."
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
        elif aggregate in _ENSEMBLES:
            self._one_scale = _one_scale(str(aggregate), self.components, scales)
            if aggregate == "min":
                self.aggregate = partial(lowest, self._one_scale)
            else:
                penalty = 1.0 if penalty is None else float(penalty)
                self.aggregate = partial(conservative, self._one_scale, penalty)
                self.derived = (DISAGREEMENT,)
        elif aggregate == "geometric_mean":
            for name, component in self.components.items():
                spec = component.spec
                if not spec.higher_is_better or spec.range[0] < 0:
                    raise ValueError(
                        f"aggregate = 'geometric_mean' needs scores of 0 or more that are better "
                        f"when higher, but {name} has the range {spec.range}. Use a probability, "
                        "or another aggregate."
                    )
            self.aggregate = geometric_mean
        elif aggregate == "gm":
            self.thresholds = checked_thresholds(thresholds or GM_THRESHOLDS)
            self.accuracy_score, names = _gm_components(self.components)
            self.aggregate = partial(gm_of, names, self.thresholds)
        else:
            assert callable(aggregate)
            self.aggregate = aggregate
        self.device = device
        if device is not None:
            for scorer in self._scorers():
                scorer.to(device)
        self._worker = Worker()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.components)}>"

    def load(self) -> None:
        """Load all models now: before `submit` on a thread, since this may draw random numbers."""
        for scorer in self._scorers():
            scorer.load()

    def release(self) -> None:
        """See `AnyReward`."""
        self._worker.close(cancel=True)
        for scorer in self._scorers():
            scorer.release()

    def combine(self, components: Mapping[str, Scores], seconds: float) -> RewardBatch:
        """Return the rewards of samples whose scores are known; see `RewardBatch`."""
        n = len(next(iter(components.values())))
        if self._conditional:
            components = counted(self._conditional, components)
        total = np.asarray(self.aggregate(components), dtype=np.float64)
        if total.shape != (n,):
            problem = f"aggregate returned shape {total.shape} for {n} samples"
            raise ValueError(f"{problem}. Return one number per sample.")
        valid = np.abs(total) <= LARGEST  # False for NaN
        failed = ~valid | np.isnan([*components.values()]).any(axis=0)
        if self.derived:
            spread = disagreement(_members(self._one_scale, components))
            components = {**components, DISAGREEMENT: spread}
        return RewardBatch(np.where(failed, np.nan, total), components, failed, seconds)

    def _score(self, samples: Samples) -> RewardBatch:
        started = time.perf_counter()
        scores = scoring_stream(self.device)(score)(self.components, samples)
        batch = self.combine(scores, time.perf_counter() - started)
        return replace(batch, reasons=reasons_of(self.components, samples))

    def _scorers(self) -> list[Scorer]:
        return list(dict.fromkeys(component.scorer for component in self.components.values()))


RewardLike: TypeAlias = AnyReward | Components


def as_reward(given: RewardLike) -> AnyReward:
    """Return a reward unchanged, or `Reward(given)`.

    Examples:
        >>> def brevity(texts):
        ...     return [-float(len(text)) for text in texts]
        >>> as_reward(brevity)(["Soup.", "Good soup."]).total
        array([ -5., -10.])
    """
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
        if isinstance(component, tuple):
            raise TypeError(f"{place} has {len(component)} items, must be (component, weight)")
        if not isinstance(weight, Real | None):
            raise TypeError(
                f"{place} has the weight {shortened(weight)}, which is not a number. Several "
                "components are a list or a mapping."
            )
        if isinstance(component, AnyReward):
            raise TypeError(f"{place} is a Reward. Pass its components, such as reward['name'].")
        component = as_component(place, component)
        name = component.name if name is None else name
        if name in split:
            raise ValueError(
                f"{place} is the second component named {name!r}. Pass a mapping, name → component."
            )
        split[name] = component
        if weight is not None:
            weights[name] = float(weight)
    if not split:
        raise ValueError("components is empty, must have at least one scorer['name'] or function")
    return split, weights


def weighted_sum(weights: Mapping[str, float], scores: Mapping[str, Scores]) -> Scores:
    """Return the sum of weight × score over the names in `weights`, shape (n,)."""
    return np.sum([weight * scores[name] for name, weight in weights.items()], axis=0)


def counted(
    conditional: Mapping[str, Component], scores: Mapping[str, Scores]
) -> dict[str, Scores]:
    """Return scores by name, masked where the conditions that `conditions` returns fail."""
    result = dict(scores)
    for name, c in conditional.items():
        assert c.given is not None
        assert c.at_least is not None
        higher = c.spec.higher_is_better
        result[name] = counted_where(result[name], result[c.given], c.at_least, higher)
    return result


def fit_scales(
    components: RewardLike, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation of each component on good texts, for `scales`.

    Args:
        components: Components, as for `Reward`, or a reward.
        samples: Examples of good output, or outputs of the policy before training, with `columns`
            as in a call of a reward. Failed ones are left out.

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
            found = f"is {valid[0]}" if len(valid) else "fails"
            raise ValueError(
                f"{name} {found} for all {len(batch.total)} texts, so that it has no scale. Pass "
                "texts that it can score, and whose scores differ."
            )
        scales[name] = (float(valid.mean()), deviation)
    return scales


def lowest(scales: Scales, scores: Mapping[str, Scores]) -> Scores:
    """Return the lowest of the scores of each sample, shape (n,); NaN if one is."""
    lowest: Scores = _members(scales, scores).min(axis=0)
    return lowest


def conservative(scales: Scales, penalty: float, scores: Mapping[str, Scores]) -> Scores:
    """Return `mean_minus_deviation` of the scores on their scales, shape (n,)."""
    return mean_minus_deviation(_members(scales, scores), penalty)


def _members(scales: Scales, scores: Mapping[str, Scores]) -> Scores:
    """Return the scores in `scales` on one scale, shape (members, n)."""
    return np.stack([(scores[name] - mean) / unit for name, (mean, unit) in scales.items()])


def _one_scale(
    aggregate: str, components: Mapping[str, Component], scales: Scales | None
) -> dict[str, tuple[float, float]]:
    """Return mean and unit of each component; negative for one that is better when lower."""
    if scales is None:
        for name, component in components.items():
            if not component.spec.higher_is_better:
                raise ValueError(
                    f"aggregate = {aggregate!r} compares scores, but {name} is better when lower. "
                    "Pass the scales that fit_scales returns, a score that is better when higher, "
                    "such as log_likelihood, or a callable."
                )
        ranges = {name: component.spec.range for name, component in components.items()}
        if aggregate != "min" and len(set(ranges.values())) > 1:
            raise ValueError(
                f"aggregate = {aggregate!r} needs scores on one scale, but their ranges are "
                f"{', '.join(f'{name} {each}' for name, each in ranges.items())}. Pass the scales "
                "that fit_scales returns."
            )
        return dict.fromkeys(components, (0.0, 1.0))
    if unknown := [name for name in scales if name not in components]:
        raise ValueError(
            f"scales has {unknown[0]!r}, and the components are {', '.join(components)}"
            f"{did_you_mean(unknown[0], components)}"
        )
    signed = {}
    for name, component in components.items():
        if name not in scales:
            raise ValueError(
                f"scales has no key {name!r}, must have the mean and deviation of each component"
            )
        mean, deviation = scales[name]
        if not (np.isfinite(mean) and 0 < deviation < np.inf):
            raise ValueError(
                f"scales[{name!r}] = {(mean, deviation)}, must be a mean and a positive deviation"
            )
        signed[name] = (mean, deviation if component.spec.higher_is_better else -deviation)
    return signed


def conditions(components: Mapping[str, Component]) -> dict[str, Component]:
    """Return the components with a condition, each after the one that its condition names."""
    conditions = {name: c.given for name, c in components.items() if c.given is not None}
    for name, given in conditions.items():
        place = f"components[{name!r}] has given = {given!r}"
        if given not in components:
            raise ValueError(
                f"{place}, which is not a component{did_you_mean(given, components)}: the reward "
                f"has {', '.join(components)}"
            )
        if not components[given].spec.higher_is_better:
            raise ValueError(
                f"{place}, which is better when lower. Use a component that is better when "
                "higher, such as log_likelihood instead of perplexity."
            )
        spec = components[name].spec
        if (spec.range[1] <= 0) if spec.higher_is_better else (spec.range[0] >= 0):
            better = "higher" if spec.higher_is_better else "lower"
            raise ValueError(
                f"{place}, but no value of its score ({spec.range}, better when {better}) is "
                "better than 0, the value if the condition fails. Use a score that is better when "
                "higher and can exceed 0."
            )
    try:
        order = TopologicalSorter({n: [given] for n, given in conditions.items()}).static_order()
        return {name: components[name] for name in order if name in conditions}
    except CycleError as error:
        raise ValueError(
            f"the conditions of the components form a cycle, {' → '.join(error.args[1])}. Leave "
            "one of them out."
        ) from None


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
            f"{name} is better when {better}, but its weight {weight} rewards the opposite. "
            f"Use {-weight}."
        )


def _gm_components(components: Mapping[str, Component]) -> tuple[AccuracyScore, tuple[str, ...]]:
    """Return the score used as accuracy, and the names of the three in eq. 1's order."""
    keys = {component.name: key for key, component in components.items()}
    for accuracy in get_args(AccuracyScore):
        wanted = (accuracy, "similarity", "perplexity")
        if keys.keys() == {*wanted} and len(components) == 3:
            return accuracy, tuple(keys[name] for name in wanted)
    raise ValueError(
        "aggregate = 'gm' needs exactly one accuracy or label_probability, one similarity and one "
        f"perplexity, but the components are {', '.join(c.name for c in components.values())}. Use "
        "'geometric_mean' for the plain mean of other scores."
    )
