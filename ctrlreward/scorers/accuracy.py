"""Accuracy of control: whether a classifier assigns the target label to a text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Unpack

import numpy as np

from ctrlreward.arguments import one_of
from ctrlreward.models.classifier import Classifier, LabelProbabilities, classifier_labels
from ctrlreward.models.sharing import shared_model
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer, check_loaded


class Accuracy(ModelScorer[LabelProbabilities]):
    """Decision of a classifier on the target label of each text. Needs `labels`, or a `target`.

    - `accuracy`: 1.0 if the classifier predicts the target label, else 0.0; higher is better. A
      classifier with `problem_type="multi_label_classification"` predicts each label whose
      probability exceeds 0.5.
    - `label_probability`: probability of the target label, 0 to 1; higher is better.

    Args:
        model: Local folder or Hugging Face id of a sequence classifier, or an object with `labels`
            and `probabilities`, such as a `CTRLEval` scorer. None takes `CTRLEval()` with its
            built-in weights and the labels `negative` and `positive`.
        target: Target label of all texts, instead of `labels`: `"sound"` of a classifier of sound
            and corrupted texts.
        attribute: Attribute whose target is read, for samples with labels of several attributes.
        **options: See `ModelOptions`.
    """

    def __init__(
        self,
        model: str | LabelProbabilities | None = None,
        target: str | None = None,
        attribute: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        if model is None:
            model = CTRLEval(aspects="attribute_relevance", **options)
        check_loaded(model, "labels", "probabilities")
        super().__init__(model, **options)
        self.target = target
        self.attribute = attribute

    specs = dict.fromkeys(("accuracy", "label_probability"), ScoreSpec(True, (0.0, 1.0)))

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return ("labels",) if self.target is None else ()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Labels of the classifier, in the order of its outputs, read without the weights."""
        return classifier_labels(self.model) if isinstance(self.model, str) else self.model.labels

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        self._targets(samples)

    def build_model(self, name: str) -> LabelProbabilities:
        return shared_model(Classifier, name, self.device, self.dtype, self.batch_tokens)

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        targets = np.array(self._targets(samples), int)
        with self.locked_model() as classifier:
            probabilities = np.asarray(classifier.probabilities(samples.texts))
            multi_label = getattr(classifier, "multi_label", False)
        expected = len(samples), len(self.labels)
        if probabilities.shape != expected:
            raise ValueError(
                f"{type(classifier).__name__}.probabilities must return an array of shape "
                f"{expected}, got {probabilities.shape}"
            )
        chances = probabilities[np.arange(len(samples)), targets]
        predicted = probabilities.argmax(axis=1) == targets
        correct = np.where(np.isnan(chances), np.nan, chances > 0.5 if multi_label else predicted)
        return {"accuracy": correct, "label_probability": chances}

    def _targets(self, samples: Samples) -> list[int]:
        if self.target is None:
            return samples.label_indices(self.labels, "Accuracy", self.attribute)
        target = one_of("target", self.target, self.labels)
        return [self.labels.index(target)] * len(samples)
