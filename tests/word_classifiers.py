"""Classifiers without models: they read words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec


class CountingWords:
    """Classifier that counts words: each label's share of all label words."""

    def __init__(self, **words: str) -> None:
        self.words = words
        self.labels = tuple(words)

    def probabilities(self, texts: Sequence[str]) -> Scores:
        assert all(text.strip() for text in texts)
        counts = [[t.split().count(word) + 0.5 for word in self.words.values()] for t in texts]
        table = np.array(counts).reshape(-1, len(self.labels))
        return table / table.sum(axis=1, keepdims=True)


class ScorerAsClassifier(CountingWords, Scorer):
    """Scorer that is also a classifier, like CTRLEval."""

    device = "cpu"
    released = 0

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return {}

    def to(self, device: str) -> None:
        self.device = device

    def release(self) -> None:
        self.released += 1


class FirstWord:
    """Classifier that only reads the first word."""

    labels = ("negative", "positive")

    def probabilities(self, texts: Sequence[str]) -> Scores:
        rows = [[0.1, 0.9] if text.startswith("good") else [0.8, 0.2] for text in texts]
        return np.array(rows).reshape(-1, 2)
