from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from word_classifiers import CountingWords

from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import Scores

JUDGE = CountingWords(negative="bad", positive="good")
TEXTS = ["good good bad", "bad", "", "good"]
OTHER = {"negative": "positive", "positive": "negative"}
LABELS = ["positive", "positive", "negative", "positive"]


def test_decision_and_probability_of_the_target_label() -> None:
    scores = Accuracy(JUDGE).score(Samples(TEXTS, labels=LABELS))
    np.testing.assert_array_equal(scores["accuracy"], [1, 0, np.nan, 1])
    np.testing.assert_allclose(scores["label_probability"], [2.5 / 4, 0.25, np.nan, 0.75])
    flipped = Accuracy(JUDGE).score(Samples(TEXTS, labels=[OTHER[label] for label in LABELS]))
    for name, values in scores.items():
        np.testing.assert_allclose(flipped[name], 1 - values)


class Returning(CountingWords):
    """Classifier of a user, with these probabilities."""

    def __init__(self, *rows: Sequence[float] | float) -> None:
        super().__init__(negative="bad", positive="good")
        self.rows = np.array(rows)

    def probabilities(self, texts: Sequence[str]) -> Scores:
        return self.rows


def test_probabilities_that_failed_or_are_of_another_shape() -> None:
    samples = Samples(["a", "b"], labels=["positive", "negative"])
    scores = Accuracy(Returning([0.2, 0.8], [np.nan, np.nan])).score(samples)
    np.testing.assert_array_equal(scores["accuracy"], [1, np.nan])
    np.testing.assert_array_equal(scores["label_probability"], [0.8, np.nan])
    with pytest.raises(ValueError, match=r"Returning\.probabilities"):
        Accuracy(Returning(0.8, 0.1)).score(samples)


def test_a_target_of_all_texts_needs_no_labels() -> None:
    scorer = Accuracy(JUDGE, target="positive")
    assert scorer.required_columns() == ()
    expected = Accuracy(JUDGE).score(Samples(TEXTS, labels=["positive"] * len(TEXTS)))
    for samples in (Samples(TEXTS), Samples(TEXTS, labels=["of another task"] * len(TEXTS))):
        for name, values in scorer.score(samples).items():
            np.testing.assert_array_equal(values, expected[name])
    with pytest.raises(ValueError, match="target"):
        Accuracy(JUDGE, target="sound").score(TEXTS)
