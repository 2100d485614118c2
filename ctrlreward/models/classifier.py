"""Classifiers: label probabilities of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.loading import load_config

Probabilities = npt.NDArray[np.float64]


@runtime_checkable
class LabelProbabilities(Protocol):
    """Classifier of texts: a `Classifier`, a `CTRLEval`, or your own.

    With `multi_label = True`, each label with a probability above 0.5 is predicted.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels, one per column of `probabilities`."""

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Return float64 of shape (texts, labels); NaN for a text that cannot be classified."""


class Classifier(FrozenModel):
    """Frozen sequence classifier with one output per label.

    Takes the arguments of `FrozenModel`. `problem_type="multi_label_classification"` in its config
    sets `multi_label`.
    """

    auto_class = AutoModelForSequenceClassification

    def _prepare(self) -> None:
        self.labels = _labels(self.name, self.model.config)
        self.multi_label = self.model.config.problem_type == "multi_label_classification"

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Return float64 of shape (texts, labels); long texts are truncated, with a warning."""

        def activate(output: Any, mask: Tensor) -> list[Probabilities]:
            logits = output.logits.cpu().double()
            chances = logits.sigmoid() if self.multi_label else logits.softmax(dim=-1)
            return list(chances.numpy())

        values = self.read_texts(texts, activate)
        return np.array(values, dtype=np.float64).reshape(-1, len(self.labels))


def classifier_labels(model: str) -> tuple[str, ...]:
    """Return the labels of a `Classifier`, from its config."""
    return _labels(model, load_config(model))


def _labels(name: str, config: Any) -> tuple[str, ...]:
    outputs = config.num_labels
    if outputs < 2 or getattr(config, "problem_type", None) == "regression":
        raise ValueError(
            f"model = {name!r} has {outputs} outputs of a regression, must be a classifier with 2 "
            "labels or more. Use RewardModel for a regression."
        )
    return tuple(config.id2label[i] for i in range(outputs))
