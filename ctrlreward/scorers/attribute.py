"""Whether classifiers find all wanted attributes in a text (multi-aspect control)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.present import present, spread

log = logging.getLogger(__name__)

# Attribute → wanted label, of one sample.
Wanted = Mapping[str, str]

_NAMES = ("accuracy", "label_probability")
_ASSIGNMENT = re.compile(r"(?:^|\s+)([^\s=]+)=")


class MeanAndDeviation(NamedTuple):
    """Over combinations of wanted labels.

    Attributes:
        mean: 0 to 1, higher is better.
        deviation: Standard deviation over the combinations that there are (divisor n).
    """

    mean: float
    deviation: float


@dataclass(frozen=True)
class AttributeReport:
    """How well a generator is controlled, as studies of multi-aspect control report it.

    Attributes:
        combinations: Each combination of wanted labels (`"sentiment=negative topic=world"`), with
            the mean over its samples of each attribute it names.
        attributes: Each attribute over the combinations that name it.
        average: Over combinations, of the mean of a combination's attributes.
        failed: Samples without a score, left out.
    """

    combinations: Mapping[str, Mapping[str, float]]
    attributes: Mapping[str, MeanAndDeviation]
    average: MeanAndDeviation
    failed: int


class AttributeClassifier(Scorer):
    """One classifier an attribute, each asked for the wanted label. Needs `labels`.

    - `accuracy_<attribute>`: 1.0 where the attribute's classifier decides for the wanted label,
      else 0.0; NaN where the sample doesn't name the attribute, which is then not controlled.
    - `label_probability_<attribute>`: the probability of the wanted label, 0 to 1, or NaN.
    - `accuracy`, `label_probability`: their means over the attributes that the sample names.
      These are what a reward is made of: they are NaN only where the sample failed.

    Higher is better throughout. A sample's label names its attributes, `"sentiment=negative
    topic=world"` (`attribute_label` writes it); with a single classifier a plain label does.

    Args:
        classifiers: Attribute → classifier, as `Accuracy` takes it. A classifier that reads a
            text pair (`"world"` and the text, as AG News classifiers of control studies do)
            is given as an object with `labels` and `probabilities`.
        device: Where classifiers that are named run.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass; None picks by device.

    Raises:
        ValueError: There is no classifier, or an attribute's name is empty or has white space or
            "=" in it.
    """

    def __init__(
        self,
        classifiers: Mapping[str, str | LabelProbabilities],
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if not classifiers:
            raise ValueError("classifiers is empty: give {attribute: classifier}")
        for attribute in classifiers:
            if not re.fullmatch(r"[^\s=]+", attribute):
                raise ValueError(
                    f"classifiers has the attribute {attribute!r}: give names without white space "
                    "and '=', which part the attributes in a sample's label"
                )
        self.parts = {
            attribute: Accuracy(classifier, device, dtype, batch_tokens)
            for attribute, classifier in classifiers.items()
        }

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """The means, then those of each attribute."""
        names = [*_NAMES, *(f"{name}_{part}" for part in self.parts for name in _NAMES)]
        return {name: ScoreSpec(higher_is_better=True, range=(0.0, 1.0)) for name in names}

    def score(self, samples: Samples) -> dict[str, Scores]:
        """All scores, float64 of shape (n,).

        NaN, with a warning, where a text is empty or a label names no attribute; a mean is NaN
        too where a classifier fails on one of its attributes.

        Raises:
            ValueError: The column `labels` is absent, or names an attribute that has no
                classifier or a label that its classifier doesn't know.
        """
        return self._score(samples, self._wanted(samples))

    def corpus(self, samples: Samples, score: str = "accuracy") -> AttributeReport:
        """Averages and deviations over the combinations of wanted labels.

        Gu et al. (2022, 2023) report the mean and the deviation over the combinations of
        attributes under the name of accuracy; their published evaluation takes the mean
        probability of the wanted label, which is `score="label_probability"`.

        Args:
            samples: All texts of one system.
            score: `"accuracy"`, the share of right decisions, or `"label_probability"`.

        Raises:
            ValueError: As `score` does, or `score` is another one.
        """
        if score not in _NAMES:
            raise ValueError(f"score = {score!r}: give one of {', '.join(_NAMES)}")
        wanted = self._wanted(samples)
        scores = self._score(samples, wanted)
        rows: dict[str, list[int]] = {}
        for i, labels in enumerate(wanted):
            if not np.isnan(scores[score][i]):
                ordered = {part: labels[part] for part in self.parts if part in labels}
                rows.setdefault(attribute_label(ordered), []).append(i)
        combinations = {
            name: {
                part: float(scores[f"{score}_{part}"][places].mean())
                for part in self.parts
                if part in wanted[places[0]]
            }
            for name, places in rows.items()
        }
        return AttributeReport(
            combinations,
            {
                part: _over([of[part] for of in combinations.values() if part in of])
                for part in self.parts
            },
            _over([float(np.mean(list(of.values()))) for of in combinations.values()]),
            failed=int(np.isnan(scores[score]).sum()),
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Those of all classifiers."""
        return tuple(dict.fromkeys(d for part in self.parts.values() for d in part.devices))

    def load(self) -> None:
        """Loads all classifiers now."""
        for part in self.parts.values():
            part.load()

    def to(self, device: str) -> None:
        """Moves all classifiers, as `Accuracy` does."""
        for part in self.parts.values():
            part.to(device)

    def release(self) -> None:
        """Frees all classifiers; `score` loads them again."""
        for part in self.parts.values():
            part.release()

    def _score(self, samples: Samples, wanted: Sequence[Wanted]) -> dict[str, Scores]:
        n = len(samples)
        kept = []
        for i in present("attributes", texts=samples.texts):
            if wanted[i]:
                kept.append(i)
            else:
                log.warning("labels[%d] names no attribute: attributes is NaN", i)
        means = {name: np.zeros(n) for name in _NAMES}
        counts = spread([len(wanted[i]) for i in kept], kept, n)
        parts: dict[str, Scores] = {}
        for attribute, part in self.parts.items():
            rows = [i for i in kept if attribute in wanted[i]]
            if not rows:
                parts |= {f"{name}_{attribute}": np.full(n, np.nan) for name in _NAMES}
                continue
            labels = [wanted[i][attribute] for i in rows]
            scores = part.score(Samples([samples.texts[i] for i in rows], labels=labels))
            for name in _NAMES:
                parts[f"{name}_{attribute}"] = spread(scores[name], rows, n)
                means[name][rows] += scores[name]
        return {name: total / counts for name, total in means.items()} | parts

    def _wanted(self, samples: Samples) -> list[Wanted]:
        """The wanted label of each attribute that a sample names, in the order of its label."""
        wanted: list[Wanted] = []
        for i, label in enumerate(samples.require("labels", "AttributeClassifier")):
            asked = _parse(label, next(iter(self.parts)) if len(self.parts) == 1 else None)
            if asked is None:
                raise ValueError(
                    f"labels[{i}] = {label!r} is not of the form "
                    f"{attribute_label(dict.fromkeys(self.parts, '…'))!r}: name the attributes "
                    "that are wanted, none of them twice"
                )
            for attribute, value in asked.items():
                self._check(f"labels[{i}] = {label!r}", attribute, value)
            wanted.append(asked)
        return wanted

    def _check(self, item: str, attribute: str, value: str) -> None:
        if attribute not in self.parts:
            raise ValueError(
                f"{item}: there is no classifier for {attribute!r}, only for "
                f"{', '.join(self.parts)}"
            )
        known = self.parts[attribute].classifier.labels
        if value not in known:
            raise ValueError(
                f"{item}: {value!r} is no label of the classifier for {attribute!r}, which knows "
                f"{', '.join(known)}"
            )


def attribute_label(wanted: Mapping[str, str | None]) -> str:
    """The label of a sample with these attributes: `"sentiment=negative topic=world"`.

    Args:
        wanted: Attribute → label; one that is None is not controlled, and left out.
    """
    return " ".join(f"{name}={label}" for name, label in wanted.items() if label is not None)


def _parse(label: str, only: str | None) -> dict[str, str] | None:
    """Attribute → wanted label, none of an empty label; None where it can't be read.

    A plain label is that of the only attribute.
    """
    start, *pieces = _ASSIGNMENT.split(label.strip())
    names, values = pieces[::2], pieces[1::2]
    if start and only is not None and not names:
        return {only: start}
    if start or len(set(names)) < len(names):
        return None
    return {name: value.strip() for name, value in zip(names, values, strict=True)}


def _over(values: Sequence[float]) -> MeanAndDeviation:
    if not values:
        return MeanAndDeviation(float("nan"), float("nan"))
    return MeanAndDeviation(float(np.mean(values)), float(np.std(values)))
