"""Judges of `BeforeAfter`: scores that only the report sees, and their change by training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.callbacks.logged_scores import FAIL_RATE, mean_scores
from ctrlreward.functional.bootstrap import Estimate, paired_bootstrap
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.ranking import auc, paired_auc_bootstrap
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores
from ctrlreward.scorers.components import ComponentLike, as_component

_UNDEFINED = Estimate(nan, nan, nan)


@dataclass(frozen=True)
class Mean:
    """Judge by the mean of a score over all texts.

    Args:
        score: One score of a scorer.
    """

    score: Component

    def check(self, samples: Samples) -> None:
        """Raise a ValueError unless the samples have two groups, which an interval needs."""
        _check_groups(samples)

    def value(self, scores: Scores, samples: Samples) -> float:
        """Return the mean of n scores, NaN (failed samples) left out; NaN if there are none."""
        return valid_mean(scores)

    def change(self, before: Scores, after: Scores, samples: Samples) -> Estimate:
        """Return after - before with its 95 % interval; NaN where a side has no finite mean."""
        if not (_are_valid(before) and _are_valid(after)):
            return _UNDEFINED
        return paired_bootstrap(before, after, _groups(samples))

    def interval(self, scores: Scores, samples: Samples) -> Estimate:
        """Return the mean with its 95 % interval; NaN where it is not finite."""
        return self.change(np.zeros_like(scores), scores, samples)


@dataclass(frozen=True)
class AUC:
    """Judge by the area under the ROC curve of a score, for samples of two labels.

    It is the probability that a text generated for the label `positive` scores above one generated
    for another label, over all pairs of texts, where a tie counts half: 0 to 1, 0.5 if the texts
    do not follow their labels, higher is better. No threshold is involved, so the score may be
    biased or uncalibrated.

    Args:
        component: One score of a scorer, such as `LexiconSentiment()["polarity"]`, or a scorer with
            a single one.
        positive: Label of the texts that should score higher.

    Raises:
        TypeError: `component` is neither a component nor a scorer.
        ValueError: It is a scorer with several scores.

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

    def __post_init__(self) -> None:
        _ = self.score

    @property
    def score(self) -> Component:
        """The score that ranks the texts."""
        return as_component("component", self.component)

    def check(self, samples: Samples) -> None:
        """Raise a ValueError unless the samples have two groups, `positive` and another label."""
        _check_groups(samples)
        labels = dict.fromkeys(samples.require("labels", "AUC"))
        if self.positive not in labels or len(labels) < 2:
            raise ValueError(
                f"AUC ranks texts of the label {self.positive!r} above those of another one, and "
                f"the samples have the labels {', '.join(labels)}: give samples of both"
            )

    def value(self, scores: Scores, samples: Samples) -> float:
        """Return the AUC of n scores, NaN (failed samples) left out; NaN if a side has none."""
        return auc(scores, self._wanted(samples))

    def change(self, before: Scores, after: Scores, samples: Samples) -> Estimate:
        """Return after - before with its 95 % interval; NaN where a side has no pairs."""
        if not (_are_valid(before) and _are_valid(after)):
            return _UNDEFINED
        return paired_auc_bootstrap(before, after, self._wanted(samples), _groups(samples))

    def interval(self, scores: Scores, samples: Samples) -> Estimate:
        """Return the AUC with its 95 % interval; NaN without pairs."""
        constant = np.zeros_like(scores)  # its AUC is 0.5 in every draw
        found = self.change(constant, scores, samples)
        return Estimate(*(end + 0.5 for end in (found.value, found.low, found.high)))

    def _wanted(self, samples: Samples) -> npt.NDArray[np.bool_]:
        return np.array([label == self.positive for label in samples.require("labels", "AUC")])


Judge: TypeAlias = Mean | AUC


def judges_by_name(
    judges: Mapping[str, ComponentLike | AUC], scores: Collection[str]
) -> dict[str, Judge]:
    """Return the `judges` of `BeforeAfter`, with the mean for those that are scores.

    Args:
        judges: Name → judge.
        scores: Names of the report's scores, which stand in the same files.

    Raises:
        TypeError: `judges` is not a mapping, or a value is neither an `AUC` nor a score.
        ValueError: A judge has the name of a score or of `fail_rate`, or is a scorer with several
            scores.
    """
    if not isinstance(judges, Mapping):
        raise TypeError(
            f"judges is a {type(judges).__name__}: give a mapping, "
            '{"sentiment": LexiconSentiment()["accuracy"]}'
        )
    for name in judges:
        if name in scores or name == FAIL_RATE:
            raise ValueError(
                f"judges has the key {name!r}, which the scores have, too: give another name"
            )
    return {
        name: given if isinstance(given, AUC) else Mean(as_component(f"judges[{name!r}]", given))
        for name, given in judges.items()
    }


def comparison(
    scores: Mapping[str, Component],
    judges: Mapping[str, Judge],
    samples: Samples,
    sets: Mapping[str, Mapping[str, Scores]],
) -> dict[str, Any]:
    """Return the entries of `summary.json` that compare the sets of texts.

    Args:
        scores: The report's scores; differences are those of the first one.
        judges: The report's judges.
        samples: n samples of the selected policy, for their labels and groups.
        sets: `"before"`, `"after"` and other texts for the same prompts → score or judge → its
            score of each text, shape (n,), NaN where it failed.
    """
    first = next(iter(scores))
    others = [name for name in sets if name not in ("before", "after")]

    def means(name: str) -> dict[str, float]:
        own = {key: sets[name][key] for key in scores}
        return {**mean_scores(own), "generations": len(samples)}

    def change(name: str, judge: Judge, key: str) -> dict[str, Any]:
        found = judge.change(sets[name][key], sets["after"][key], samples)
        return {"difference": found.value, "difference_ci95": [found.low, found.high]}

    def verdict(key: str, judge: Judge) -> dict[str, Any]:
        values = {name: judge.value(each[key], samples) for name, each in sets.items()}
        failed = {name: int(np.isnan(each[key]).sum()) for name, each in sets.items()}
        return {
            "before": values["before"],
            "after": values["after"],
            **change("before", judge, key),
            "failed": failed,
            "others": {
                name: {"value": values[name], **change(name, judge, key)} for name in others
            },
        }

    mean = Mean(scores[first])
    all_judges = {key: Mean(component) for key, component in scores.items()} | {**judges}

    def intervals(name: str) -> dict[str, list[float]]:
        found = {key: j.interval(sets[name][key], samples) for key, j in all_judges.items()}
        return {key: [estimate.low, estimate.high] for key, estimate in found.items()}

    return {
        "score": first,
        "before": means("before"),
        "after": means("after"),
        **change("before", mean, first),
        "others": {name: {**means(name), **change(name, mean, first)} for name in others},
        "judges": {key: verdict(key, judge) for key, judge in judges.items()},
        "intervals": {name: intervals(name) for name in ("before", "after")},
    }


def _are_valid(scores: Scores) -> bool:
    return not np.isnan(scores).all() and not np.isinf(scores).any()


def _check_groups(samples: Samples) -> None:
    groups = _groups(samples)
    if len(set(groups)) < 2:
        raise ValueError(
            f"the samples of BeforeAfter are of {len(set(groups))} group, and its intervals draw "
            "whole groups: give prompts of two or more"
        )


def _groups(samples: Samples) -> tuple[str, ...]:
    return samples.require("groups", "BeforeAfter")
