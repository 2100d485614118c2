"""Judges of `BeforeAfter`: scores that only the report sees, and the change of each by training."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.bootstrap import Estimate, cluster_numbers, paired_bootstrap
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.ranking import auc, paired_auc_bootstrap
from ctrlreward.functional.sequential import detectable_difference
from ctrlreward.functional.shaping import valid_group_means
from ctrlreward.held_out import FAIL_RATE, mean_scores
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores
from ctrlreward.scorers.components import ComponentLike, as_component, check_named


@dataclass(frozen=True)
class Mean:
    """Judge by the mean of a score."""

    score: Component
    of_zeros = 0.0  # its value for texts with the score 0

    def value(self, scores: Scores, samples: Samples) -> float:
        """Return the mean of the valid scores."""
        return valid_mean(scores)

    def change(self, before: Scores, after: Scores, samples: Samples) -> Estimate:
        """Return after - before with its 95 % interval, over the groups that both have.

        If only the hard prompts of one side fail, its mean over all valid scores would be better.
        """
        groups = _groups(samples)
        members = cluster_numbers(groups)
        lacking = np.isnan([valid_group_means(side, members) for side in (before, after)])
        if (alone := lacking.any(axis=0)).all():
            return Estimate(nan, nan, nan)
        first, second = (np.where(alone, nan, side) for side in (before, after))
        return paired_bootstrap(first, second, groups)


@dataclass(frozen=True)
class AUC:
    """Judge by the area under the ROC curve of a score, for samples of two labels.

    It is the probability that a text generated for the label `positive` scores above one generated
    for another label, a tie counts half: 0 to 1, 0.5 if the texts do not follow their labels,
    higher is better.

    Args:
        component: The score that ranks the texts, such as `LexiconSentiment()["polarity"]`.
        positive: Label of the texts that should score higher.
        attribute: Attribute of this label, for samples with labels of several attributes.

    Examples:
        >>> from ctrlreward import LexiconSentiment, Samples
        >>> judge = AUC(LexiconSentiment()["polarity"], positive="positive")
        >>> texts = ["Lovely soup.", "Cold soup.", "Awful soup."]
        >>> samples = Samples(texts, labels=["positive", "positive", "negative"])
        >>> judge.value(judge.score(samples), samples)
        1.0
    """

    component: ComponentLike
    positive: str
    attribute: str | None = None
    of_zeros = 0.5

    def __post_init__(self) -> None:
        _ = self.score

    @property
    def score(self) -> Component:
        """The score that ranks the texts."""
        return as_component("component", self.component)

    def value(self, scores: Scores, samples: Samples) -> float:
        """Return the AUC of n scores, without NaN (failed samples); NaN if a label has none."""
        return auc(scores, self.wanted(samples))

    def change(self, before: Scores, after: Scores, samples: Samples) -> Estimate:
        """Return after - before with its 95 % interval."""
        return paired_auc_bootstrap(before, after, self.wanted(samples), _groups(samples))

    def wanted(self, samples: Samples) -> npt.NDArray[np.bool_]:
        """Return whether each sample has the label `positive`, shape (n,)."""
        labels = samples.labels_of(self.attribute, "AUC")
        return np.array([label == self.positive for label in labels])


Judge: TypeAlias = Mean | AUC


def judges_by_name(
    judges: Mapping[str, ComponentLike | AUC], scores: Collection[str]
) -> dict[str, Judge]:
    """Return the judges; their names must differ from those in `scores`."""
    check_named("judges", judges)
    for name in judges:
        if name in scores or name == FAIL_RATE:
            raise ValueError(f"judges has the key {name!r}, which is also the name of a score")
    return {
        name: judge if isinstance(judge, AUC) else Mean(as_component(f"judges[{name!r}]", judge))
        for name, judge in judges.items()
    }


def check_judges(judges: Iterable[Judge], prompts: Samples) -> None:
    """Raise a ValueError unless prompts have two groups, and the labels that the judges need."""
    groups = set(_groups(prompts))
    if len(groups) < 2:
        raise ValueError(
            "BeforeAfter draws whole groups of samples for its intervals, and needs prompts of two "
            f"or more groups, got {len(groups)}"
        )
    for judge in judges:
        if isinstance(judge, AUC) and len(set(judge.wanted(prompts))) < 2:
            raise ValueError(
                f"AUC needs samples of the label {judge.positive!r} and of another one"
            )


def with_judges(
    scores: Mapping[str, Component], judges: Mapping[str, Judge]
) -> dict[str, Component]:
    """Return the components that score each text: the scores, and the components of the judges."""
    return {**scores, **{name: judge.score for name, judge in judges.items()}}


def comparison(
    scores: Mapping[str, Component],
    judges: Mapping[str, Judge],
    samples: Samples,
    sets: Mapping[str, Mapping[str, Scores]],
) -> dict[str, Any]:
    """Return the entries of `summary.json` that compare the texts by the first of `scores`.

    `sets` maps `"before"` and `"after"` to the scores, (n,), of texts for the same prompts.
    """
    first, sides = next(iter(scores)), ("before", "after")
    measures: dict[str, Judge] = {**{name: Mean(c) for name, c in scores.items()}, **judges}
    members = cluster_numbers(_groups(samples))
    rows = np.unique(members, return_index=True)[1]

    def means(name: str) -> dict[str, float]:
        own = {key: sets[name][key] for key in scores}
        return {**mean_scores(own), "generations": len(samples)}

    def change(key: str, before: Scores, after: Scores) -> Estimate:
        if any(np.isnan(side).all() or np.isinf(side).any() for side in (before, after)):
            return Estimate(nan, nan, nan)
        return measures[key].change(before, after, samples)

    def difference(key: str) -> dict[str, Any]:
        value, low, high = change(key, *(sets[side][key] for side in sides))
        return {"difference": value, "difference_ci95": [low, high]}

    def verdict(key: str) -> dict[str, Any]:
        return {
            **{name: judges[key].value(each[key], samples) for name, each in sets.items()},
            **difference(key),
            "failed": {name: int(np.isnan(each[key]).sum()) for name, each in sets.items()},
        }

    def interval(name: str, key: str) -> list[float]:
        """Return the interval of a value, by its difference to the value of zeros."""
        _, low, high = change(key, np.zeros(len(samples)), sets[name][key])
        return [low + measures[key].of_zeros, high + measures[key].of_zeros]

    def resolution(key: str) -> dict[str, float]:
        before, after = (valid_group_means(sets[side][key], members)[rows] for side in sides)
        both = int(np.isfinite(after - before).sum())
        return {"prompts": both, "detectable": detectable_difference(before, after)}

    return {
        "score": first,
        **{side: means(side) for side in sides},
        **difference(first),
        "others": {},  # a key of the file's format
        "judges": {key: verdict(key) for key in judges},
        "intervals": {side: {key: interval(side, key) for key in measures} for side in sides},
        "resolution": {f"score/{key}": resolution(key) for key in scores},
    }


def _groups(samples: Samples) -> tuple[str, ...]:
    return samples.require("groups", "BeforeAfter")
