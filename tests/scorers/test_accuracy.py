from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from word_classifiers import CountingWords, ScorerAsClassifier

from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import CTRLEval

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


def test_the_shape_of_the_probabilities_is_checked() -> None:
    class Listing(CountingWords):
        def probabilities(self, texts: Sequence[str]) -> Scores:
            return super().probabilities(texts).tolist()

    class Positive(CountingWords):
        def probabilities(self, texts: Sequence[str]) -> Scores:
            return super().probabilities(texts)[:, 1]

    samples = Samples(TEXTS, labels=LABELS)
    found = Accuracy(Listing(negative="bad", positive="good")).score(samples)
    np.testing.assert_array_equal(found["accuracy"], [1, 0, np.nan, 1])
    with pytest.raises(ValueError, match=r"Positive\.probabilities"):
        Accuracy(Positive(negative="bad", positive="good")).score(samples)


def test_a_classifier_that_fails_on_a_text_gives_nan_not_zero() -> None:
    class Failing(CountingWords):
        def probabilities(self, texts: Sequence[str]) -> Scores:
            return np.array([[0.2, 0.8], [np.nan, np.nan]])

    failing = Accuracy(Failing(negative="bad", positive="good"))
    scores = failing.score(["a", "b"], labels=["positive", "negative"])
    np.testing.assert_array_equal(scores["accuracy"], [1, np.nan])
    np.testing.assert_array_equal(scores["label_probability"], [0.8, np.nan])


def test_a_target_of_all_texts_needs_no_labels() -> None:
    scorer = Accuracy(JUDGE, target="positive")
    assert scorer.required_columns() == {}
    expected = Accuracy(JUDGE).score(Samples(TEXTS, labels=["positive"] * len(TEXTS)))
    for samples in (Samples(TEXTS), Samples(TEXTS, labels=["of another task"] * len(TEXTS))):
        for name, values in scorer.score(samples).items():
            np.testing.assert_array_equal(values, expected[name])
    with pytest.raises(ValueError, match="target"):
        Accuracy(JUDGE, target="sound").score(TEXTS)


def test_ctrleval_serves_as_classifier(pegasus: str) -> None:
    evaluators = CTRLEval(pegasus, aspects=("attribute_relevance",))
    samples = Samples(["The food was good.", "Never again."], labels=["positive", "negative"])
    scores = Accuracy(evaluators).score(samples)
    own = evaluators.score(samples)["attribute_relevance"]
    np.testing.assert_allclose(scores["label_probability"], own, atol=1e-5)
    np.testing.assert_array_equal(scores["accuracy"], own > 0.5)


def test_a_scorer_serves_as_classifier_and_is_moved_and_released() -> None:
    classifier = ScorerAsClassifier(negative="bad", positive="good")
    scorer = Accuracy(classifier)
    assert scorer["accuracy"](["good"], labels="positive") == [1]
    scorer.to("cuda:1")
    assert (classifier.device, classifier.released) == ("cuda:1", True)
    assert scorer["accuracy"](["good"], labels="positive") == [1]
