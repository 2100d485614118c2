"""Accuracy of multi-aspect control: one classifier per attribute of a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

import numpy as np

from ctrlreward.failures import Failures, ItemError
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.samples import Samples, attribute_label, parse_attributes, shortened
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import CompositeScorer, Scored, Scores, ScoreSpec, scatter
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.model_scorer import ModelOptions

# Attribute → target label of one sample.
Targets = Mapping[str, str]

_NAMES = ("accuracy", "label_probability")

# Number of each sample's combination of target labels, which the folds of a corpus read.
_COMBINATION = "combination"


class AttributeClassifier(CompositeScorer):
    """Decisions of one classifier per attribute on the target labels. Needs `labels`.

    - `accuracy_<attribute>`: 1.0 if the attribute's classifier predicts the target label, else
      0.0; NaN if the label of the sample does not name the attribute: it is not controlled.
    - `label_probability_<attribute>`: probability of the target label, 0 to 1, or NaN.
    - `accuracy`, `label_probability`: means over the attributes that the sample names. Use these
      for a reward: they are NaN only if the sample failed.

    Higher is better for all. The label of a sample names its attributes, as in
    `"sentiment=negative topic=world"`; with a single classifier a plain label is enough. A corpus
    has the mean of each over the combinations of target labels, and the population standard
    deviation over them, `<score>_deviation`.

    Args:
        models: Attribute → classifier, as in `Accuracy`; names have no white space and no "=". None
            takes `CTRLEval` with its built-in weights and tasks, sentiment and topic.
        **options: See `ModelOptions`.
    """

    def __init__(
        self,
        models: Mapping[str, str | LabelProbabilities] | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        if models is None:
            models = {name: CTRLEval(task=name, **options) for name in ("sentiment", "topic")}
        if not isinstance(models, Mapping) or not models:
            raise ValueError(f"models must be attribute → classifier, got {shortened(models)}")
        for attribute in models:
            if not re.fullmatch(r"[^\s=]+", attribute):
                raise ValueError(f"models must have names without space and '=', got {attribute!r}")
        self.classifiers = {
            attribute: Accuracy(model, **options) for attribute, model in models.items()
        }

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        names = [*_NAMES, *(f"{name}_{key}" for key in self.classifiers for name in _NAMES)]
        return {name: ScoreSpec(higher_is_better=True, range=(0.0, 1.0)) for name in names}

    corpus_columns = (*_NAMES, _COMBINATION)

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        """Return mean and deviation of each score over the combinations of target labels."""
        figures = {}
        for name in self.specs.keys() & columns.keys():
            values = columns[name]
            total = columns[next(each for each in _NAMES if name.startswith(each))]
            rows = ~np.isnan(values) & ~np.isnan(total)
            numbers = columns[_COMBINATION][rows]
            means = [values[rows][numbers == each].mean() for each in np.unique(numbers)]
            figures[name] = float(np.mean(means)) if means else np.nan
            figures[f"{name}_deviation"] = float(np.std(means)) if means else np.nan
        return figures

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return ("labels",)

    @property
    def parts(self) -> tuple[Accuracy, ...]:
        return tuple(self.classifiers.values())

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        self._targets(samples)

    def score_samples(self, samples: Samples, names: Collection[str] = ()) -> Scored:
        n, targets = len(samples), self._targets(samples)
        unnamed = [i for i, named in enumerate(targets) if not named]
        totals = {name: np.zeros(n) for name in _NAMES}
        by_attribute: dict[str, Scores] = {}
        for attribute, classifier in self.classifiers.items():
            rows = [i for i, named in enumerate(targets) if attribute in named]
            if not rows:  # its model is not loaded
                by_attribute |= {f"{name}_{attribute}": np.full(n, np.nan) for name in _NAMES}
                continue
            labels = [targets[i][attribute] for i in rows]
            chosen = Samples([samples.texts[i] for i in rows], labels=labels)
            scores = classifier.score_samples(chosen)
            for name in _NAMES:
                by_attribute[f"{name}_{attribute}"] = scatter(scores[name], rows, n)
                totals[name][rows] += scores[name]
        counts = np.array([len(named) or np.nan for named in targets])
        scored = {name: total / counts for name, total in totals.items()} | by_attribute
        scored[_COMBINATION] = np.array([self._combination(named) for named in targets], float)
        return Scored(scored, Failures(dict.fromkeys(unnamed, "the label names no attribute")))

    def _combination(self, targets: Targets) -> int:
        number = 0
        for attribute, classifier in self.classifiers.items():
            known = classifier.labels
            named = known.index(targets[attribute]) + 1 if attribute in targets else 0
            number = number * (len(known) + 1) + named
        return number

    def _targets(self, samples: Samples) -> list[Targets]:
        targets: list[Targets] = []
        single = [*self.classifiers] if len(self.classifiers) == 1 else []
        for i, label in enumerate(samples.require("labels", "AttributeClassifier")):
            item = f"= {shortened(label, 80)}"
            named = parse_attributes(label)
            if named is None and single and "=" not in label:
                named = dict.fromkeys(single, label.strip())
            if named is None:
                form = attribute_label(dict.fromkeys(self.classifiers, "…"))
                raise ItemError("labels", i, f"{item} must name each attribute once, {form!r}")
            for attribute, target in named.items():
                if attribute not in self.classifiers:
                    known = ", ".join(self.classifiers)
                    raise ItemError("labels", i, f"{item}: {attribute!r} must be one of {known}")
                labels = self.classifiers[attribute].labels
                if target not in labels:
                    must = f"must be one of {', '.join(labels)}, or in label_map"
                    raise ItemError("labels", i, f"{item}: {shortened(target, 80)} {must}")
            targets.append(named)
        return targets
