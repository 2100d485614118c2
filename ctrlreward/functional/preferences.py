"""Pairwise preferences, and an aggregate of several scores that is learned from them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from ctrlreward.arguments import kind_of
from ctrlreward.files import read_json, write_whole
from ctrlreward.functional.bootstrap import Estimate, bootstrap, check_options, cluster_numbers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Quantiles between which a curve rises: outside them a score is as good as at the next one.
_REACH = (0.01, 0.99)


def pairwise_preferences(
    ratings: npt.ArrayLike, items: Sequence[Hashable], margin: float = 0.0
) -> tuple[Ints, Ints]:
    """Return the indices of the preferred and the rejected outputs of the same item, both (pairs,).

    `ratings` of the outputs, higher is better, and their `items`, for example sources, have shape
    (n,); NaN excludes an output. Ratings that differ by `margin` ≥ 0 or less express no preference.

    Raises:
        ValueError: The lengths differ, or the margin is negative.

    Examples:
        >>> pairwise_preferences([5, 3, 4], ["menu", "menu", "lake"])
        (array([0]), array([1]))
    """
    rated = np.asarray(ratings, dtype=np.float64)
    if rated.shape != (len(items),):
        raise ValueError(
            f"ratings must have one value per item, got shape {rated.shape} for {len(items)} items"
        )
    if not margin >= 0:
        raise ValueError(f"margin must be 0 or more, got {margin}")
    outputs = defaultdict(list)
    for place, item in enumerate(items):
        outputs[item].append(place)
    pairs: list[Ints] = [np.empty((0, 2), dtype=np.int64)]
    for members in map(np.array, outputs.values()):
        ahead = rated[members][:, None] - rated[members][None, :] > margin
        pairs.append(members[np.argwhere(ahead)])
    preferred, rejected = np.concatenate(pairs).T
    return preferred, rejected


@dataclass(frozen=True)
class Preferences:
    """Scores of both sides of n pairwise preferences.

    Attributes:
        preferred: Scores of the preferred sides by name, each of shape (n,); NaN or infinite where
            a score failed.
        rejected: The same scores of the rejected sides.
        higher_is_better: Direction of each score, by name.
        groups: Group of each pair, shape (n,), for example its prompt. Pairs of one group are held
            out, and drawn by the bootstrap, together. None: each pair is a group.

    Raises:
        ValueError: Names or lengths differ, or the scores are empty.

    Examples:
        >>> Preferences({"fluency": [2, 3]}, {"fluency": [1, 1]}, {"fluency": True}).groups
        (0, 1)
    """

    preferred: Mapping[str, Floats]
    rejected: Mapping[str, Floats]
    higher_is_better: Mapping[str, bool]
    groups: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        names = list(self.higher_is_better)
        sides = {}
        for side in ("preferred", "rejected"):
            given = getattr(self, side)
            if not names or set(given) != set(names):
                raise ValueError(
                    f"{side} has the scores {', '.join(given) or 'none'}, must have the names in "
                    f"higher_is_better: {', '.join(names) or 'none'}"
                )
            sides[side] = {name: np.asarray(given[name], dtype=np.float64) for name in names}
            object.__setattr__(self, side, sides[side])
        n = len(self)
        for side, scores in sides.items():
            for name, values in scores.items():
                if values.shape != (n,):
                    raise ValueError(f"{side}[{name!r}] has shape {values.shape}, must be ({n},)")
        groups = tuple(range(n) if self.groups is None else self.groups)
        if len(groups) != n:
            raise ValueError(f"groups must have one item per pair, got {len(groups)} for {n} pairs")
        object.__setattr__(self, "groups", groups)

    def __len__(self) -> int:
        return int(np.size(next(iter(self.preferred.values()))))

    @staticmethod
    def of_ratings(
        scores: Mapping[str, npt.ArrayLike],
        higher_is_better: Mapping[str, bool],
        ratings: npt.ArrayLike,
        items: Sequence[Hashable],
        margin: float = 0.0,
    ) -> Preferences:
        """Return the preferences of rated outputs, as `pairwise_preferences` finds them.

        `scores` have a value of each output by name, shape (n,); `items` are the groups of pairs.
        """
        preferred, rejected = pairwise_preferences(ratings, items, margin)
        arrays = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
        return Preferences(
            {name: values[preferred] for name, values in arrays.items()},
            {name: values[rejected] for name, values in arrays.items()},
            higher_is_better,
            [items[i] for i in preferred],
        )


@dataclass(frozen=True)
class Curve:
    """Utility of a score: linear between its knots, constant outside them.

    Attributes:
        scores: Knots, in ascending order.
        worth: Log-odds at each knot, from 0 at the worst one; never falling, or never rising where
            lower is better.

    Examples:
        >>> Curve(scores=(0.0, 1.0), worth=(0.0, 2.0))(np.array([0.5, 9.0]))
        array([1., 2.])
    """

    scores: tuple[float, ...]
    worth: tuple[float, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.worth)
        if (
            len(self.scores) != len(self.worth)
            or len(self.scores) < 1
            or not np.isfinite([self.scores, self.worth]).all()
            or not (np.diff(self.scores) > 0).all()
            or not ((steps >= 0).all() or (steps <= 0).all())
        ):
            raise ValueError(
                f"scores = {self.scores} must rise, and worth = {self.worth} must have one finite "
                "number each and only rise or only fall"
            )

    def __call__(self, values: Floats) -> Floats:
        """Return the log-odds of scores, shape (n,); NaN stays NaN."""
        # Rounded, a value may pass the next knot's.
        worth = np.asarray(self.worth)
        after = np.searchsorted(self.scores, values, side="right")
        ends = worth[np.maximum(after - 1, 0)], worth[np.minimum(after, len(worth) - 1)]
        return np.clip(np.interp(values, self.scores, worth), np.minimum(*ends), np.maximum(*ends))


@dataclass(frozen=True)
class LearnedAggregate:
    """An aggregate learned from preferences: `Reward(components, aggregate=...)` takes it.

    The total is the sum of one monotone curve per score, in log-odds: a text is preferred to
    another with the probability σ(total - other total). Higher is better. In the outer 1 % of a
    score, the curve is constant.

    Attributes:
        curves: Curve of each score, by name.
        weights: Log-odds between the worst and the best knot of each score, 0 or more, with an
            interval; 0 where the preferences give no reason to want more of it.
        agreement: Share of held-out preferences with the higher total on the preferred side, in
            [0, 1], by cross-validation over groups; equal totals count as one half.
        pairs: Number of fitted preferences.
        failed: Number of preferences left out because of a missing score.

    Examples:
        >>> curve = Curve(scores=(1.0, 100.0), worth=(2.0, 0.0))
        >>> LearnedAggregate({"perplexity": curve})({"perplexity": np.array([1.0, 50.5, 1000.0])})
        array([2., 1., 0.])
    """

    curves: Mapping[str, Curve]
    weights: Mapping[str, Estimate] | None = None
    agreement: Estimate | None = None
    pairs: int = 0
    failed: int = 0

    def __call__(self, scores: Mapping[str, Floats]) -> Floats:
        """Return one total per sample, shape (n,); NaN if a score is NaN."""
        return np.sum([curve(scores[name]) for name, curve in self.curves.items()], axis=0)

    def check(self, higher_is_better: Mapping[str, bool]) -> None:
        """Raise a ValueError unless components have the names and directions of the curves."""
        missing = [name for name in self.curves if name not in higher_is_better]
        if missing:
            raise ValueError(
                f"the learned aggregate reads the components {', '.join(self.curves)}, but "
                f"{', '.join(missing)} is missing. Pass components with these names, or fit again."
            )
        for name, curve in self.curves.items():
            rise = curve.worth[-1] - curve.worth[0]
            if (rise if higher_is_better[name] else -rise) < 0:
                better = "higher" if higher_is_better[name] else "lower"
                raise ValueError(
                    f"{name} is better when {better}, but the learned aggregate rewards the "
                    "opposite. Fit it to this score."
                )

    def save(self, path: str | PathLike[str]) -> None:
        """Write a JSON file, whole or not at all."""
        content = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_whole(Path(path), content + "\n")

    @staticmethod
    def load(path: str | PathLike[str]) -> LearnedAggregate:
        """Read a file written by `save`.

        Raises:
            ValueError: The file was not written by `save`, or a curve is not monotone.
            OSError: The file does not exist.
        """
        try:
            content = read_json(path)
            weights, agreement = content["weights"], content["agreement"]
            return LearnedAggregate(
                {
                    name: Curve(tuple(curve["scores"]), tuple(curve["worth"]))
                    for name, curve in content["curves"].items()
                },
                weights and {name: Estimate(*weight) for name, weight in weights.items()},
                agreement and Estimate(*agreement),
                content["pairs"],
                content["failed"],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is not an aggregate of fit_aggregate: {error}") from None


def fit_aggregate(
    preferences: Preferences,
    *,
    segments: int = 4,
    penalty: float = 1.0,
    folds: int = 5,
    confidence: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> LearnedAggregate:
    """Fit a monotone Bradley-Terry model to preferences.

    Bradley and Terry (1952): P(a is preferred to b) = σ(f(a) - f(b)). Here f is the sum of one
    monotone piecewise linear curve per score, whose knots are quantiles of the score. Minimizes

        Σ log(1 + exp(f(rejected) - f(preferred))) + penalty / 2 · Σ h²    over the rises h ≥ 0

    of all segments by L-BFGS-B. A score never counts against its direction.

    Args:
        preferences: Scores of both sides. Pairs with a missing score are left out and counted.
        segments: Segments of each curve; 1 is linear within the outer 1 % of the score.
        penalty: Strength of the prior, 0 or more: 1 is a standard normal for each rise.
        folds: Parts of the groups that are held out in turn for `agreement`, 2 or more.
        confidence: Of the intervals, in (0, 1), by a bootstrap of groups.
        resamples: Draws of the bootstrap; each is a fit.
        seed: Seed of the folds and of the draws.

    Raises:
        TypeError: `preferences` is of another type.
        ValueError: A number is out of range, or fewer than `folds` groups have scores.

    Examples:
        >>> scores, ratings = {"fluency": [1.0, 6.0, 2.0, 5.0, 1.0, 6.0]}, [1, 2, 1, 3, 2, 5]
        >>> items = ["soup", "soup", "view", "view", "staff", "staff"]
        >>> preferences = Preferences.of_ratings(scores, {"fluency": True}, ratings, items)
        >>> fit_aggregate(preferences, folds=3, resamples=10).agreement.value
        1.0
    """
    if not isinstance(preferences, Preferences):
        raise TypeError(
            f"preferences is {kind_of(preferences)}, must be Preferences: "
            "ctrlreward.preferences.score_preferences makes them of texts, Preferences.of_ratings "
            "of ratings"
        )
    for name, number, least in (("segments", segments, 1), ("folds", folds, 2)):
        if number < least:
            raise ValueError(f"{name} must be {least} or more, got {number}")
    if not 0 <= penalty < np.inf:
        raise ValueError(f"penalty must be 0 or more, got {penalty}")
    names = list(preferences.higher_is_better)
    # With signs such that higher is better, shape (pairs, scores) each.
    signs = np.array([1.0 if preferences.higher_is_better[name] else -1.0 for name in names])
    better, worse = (
        np.stack([side[name] for name in names], axis=1) * signs
        for side in (preferences.preferred, preferences.rejected)
    )
    kept = np.isfinite(better).all(axis=1) & np.isfinite(worse).all(axis=1)
    better, worse = better[kept], worse[kept]
    groups = [group for group, known in zip(preferences.groups or (), kept, strict=True) if known]
    members = cluster_numbers(groups)
    count = len(set(groups))
    if count < folds:
        raise ValueError(
            f"preferences with all scores must come from {folds} or more groups, got {count}. "
            "Add groups, or use fewer folds."
        )
    knots = _knots(better, worse, segments)
    rises = _rises(better, knots) - _rises(worse, knots)
    everything = np.ones(len(better))
    heights = _fit(rises, everything, penalty)
    owner = np.repeat(np.arange(len(names)), [len(each) - 1 for each in knots])

    def totals(weights: Floats) -> dict[str, Floats]:
        fits = np.stack([_fit(rises, each, penalty, heights) for each in weights])
        return {name: fits[:, owner == i].sum(axis=1) for i, name in enumerate(names)}

    curves = {}
    for i, name in enumerate(names):
        at = signs[i] * knots[i]
        worth = np.concatenate([[0.0], heights[owner == i].cumsum()])
        ascending = np.argsort(at)
        curves[name] = Curve(tuple(at[ascending].tolist()), tuple(worth[ascending].tolist()))
    # Each fold has separate knots: a held-out pair does not take part.
    fold_of = np.random.default_rng(seed).permutation(count)[members] % folds
    gains = np.empty(len(better))
    for fold in range(folds):
        held = fold_of == fold
        own = _knots(better[~held], worse[~held], segments)
        fitted = _fit(
            _rises(better[~held], own) - _rises(worse[~held], own), everything[~held], penalty
        )
        gains[held] = (_rises(better[held], own) - _rises(worse[held], own)) @ fitted
    return LearnedAggregate(
        curves,
        bootstrap(totals, members, confidence, resamples, seed),
        agreement_of_gains(gains, groups, confidence, seed=seed),
        len(better),
        int((~kept).sum()),
    )


def agreement_of_gains(
    gains: npt.ArrayLike,
    groups: Sequence[Hashable],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the share of preferences that totals agree with, in [0, 1], with its interval.

    `gains` are the total of the preferred minus the total of the rejected side, shape (n,): above 0
    agrees, 0 counts as one half. `groups`, shape (n,), are drawn whole, as in `pair_accuracy`.

    Examples:
        >>> agreement_of_gains([2.0, 1.0, -1.0, 0.0], ["soup", "soup", "view", "view"]).value
        0.625
    """
    right = (np.sign(gains) + 1) / 2
    return _share(right, cluster_numbers(groups), confidence, resamples, seed)


def _knots(better: Floats, worse: Floats, segments: int) -> list[Floats]:
    """Return the knots of each score, shape (segments + 1,) or fewer where quantiles are equal."""
    levels = np.linspace(*_REACH, segments + 1)
    values = np.concatenate([better, worse])
    # Observed values: a decision has the knots 0 and 1.
    columns = np.quantile(values, levels, axis=0, method="inverted_cdf").T
    return [np.unique(column) for column in columns]


def _rises(values: Floats, knots: Sequence[Floats]) -> Floats:
    """Return how far each value is within each segment, 0 to 1, shape (n, all segments)."""
    columns = [
        np.clip((values[:, i, None] - each[:-1]) / np.diff(each), 0.0, 1.0)
        for i, each in enumerate(knots)
    ]
    return np.concatenate(columns, axis=1)


def _fit(rises: Floats, weights: Floats, penalty: float, start: Floats | None = None) -> Floats:
    """Return the rise of each segment, 0 or more, shape (segments,)."""
    if not rises.shape[1]:  # all scores are constant
        return np.zeros(0)

    from scipy.optimize import minimize  # takes half a second

    def loss(heights: Floats) -> tuple[float, Floats]:
        gains = rises @ heights
        value = weights @ np.logaddexp(0.0, -gains) + penalty / 2 * heights @ heights
        return float(value), penalty * heights - rises.T @ (weights * expit(-gains))

    start = np.zeros(rises.shape[1]) if start is None else start
    bounds = [(0.0, None)] * rises.shape[1]
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x


class PairAccuracy(NamedTuple):
    """Share of pairs in which the chosen text has the higher score.

    Attributes:
        pairs: Number of pairs with both scores.
        higher: Share of these in which the chosen text scores higher, with its 95 % interval.
        ties: Share in which both score the same.
        failed: Number of pairs of which a text could not be scored.

    Examples:
        >>> pair_accuracy([2.0, 1.0, 0.5], [1.0, 1.0, np.nan]).failed
        1
    """

    pairs: int
    higher: Estimate
    ties: float
    failed: int


def pair_accuracy(
    chosen: npt.ArrayLike,
    rejected: npt.ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> PairAccuracy:
    """Return how often chosen texts score higher than rejected ones.

    `chosen` and `rejected` are scores of the texts of the same pairs, higher is better, NaN where
    scoring failed, shape (n,), and `clusters` such as prompts; None: each pair is its own. The
    interval is Wilson's if each pair is a cluster, or if all clusters have the same share, where n
    is the number of clusters; else of the bootstrap over clusters.

    Raises:
        ValueError: The lengths differ.

    Examples:
        >>> pair_accuracy([0.9, 0.8, 0.7, 0.1], [0.5, 0.5, 0.5, 0.5]).higher
        Estimate(value=0.75, low=0.30..., high=0.95...)
    """
    sides = np.asarray(chosen, np.float64), np.asarray(rejected, np.float64)
    names: list[Hashable] = list(range(len(sides[0])) if clusters is None else clusters)
    if not len(sides[0]) == len(sides[1]) == len(names):
        raise ValueError(
            f"chosen, rejected and clusters must have one item per pair, got {len(sides[0])}, "
            f"{len(sides[1])} and {len(names)}"
        )
    valid = np.isfinite(sides[0]) & np.isfinite(sides[1])
    wins = (sides[0] > sides[1])[valid].astype(np.float64)
    ties = (sides[0] == sides[1])[valid].astype(np.float64)
    failed = int((~valid).sum())
    if not len(wins):
        return PairAccuracy(0, Estimate(np.nan, np.nan, np.nan), np.nan, failed)
    members = cluster_numbers([name for name, kept in zip(names, valid, strict=True) if kept])
    higher = _share(wins, members, 0.95, resamples, seed)
    return PairAccuracy(len(wins), higher, float(ties.mean()), failed)


def _share(rights: Floats, members: Ints, confidence: float, resamples: int, seed: int) -> Estimate:
    """Return the mean of values in [0, 1] with its interval, as `pair_accuracy` says."""
    sums, counts = np.bincount(members, weights=rights), np.bincount(members)
    check_options(confidence, resamples)
    n, share = len(counts), float(rights.mean())
    # Draws of clusters that agree are all equal.
    if n < len(rights) and np.ptp(sums / counts) > 0:
        return bootstrap(
            lambda weights: {"": weights @ sums / (weights @ counts)},
            *(np.arange(n), confidence, resamples, seed),
        )[""]
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = share + z**2 / (2 * n)
    width = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    ends = ((middle + sign * width) / (1 + z**2 / n) for sign in (-1, 1))
    return Estimate(share, *(float(np.clip(end, 0.0, 1.0)) for end in ends))
