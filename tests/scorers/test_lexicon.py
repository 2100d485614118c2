from __future__ import annotations

import numpy as np
import pytest

from ctrlreward import LexiconSentiment, Samples
from ctrlreward.failures import ItemError
from ctrlreward.samples import MissingColumn
from ctrlreward.scorers.base import score

# Sentences of our own, from the most negative to the most positive.
TEXTS = [
    "Horrible room, disgusting food and the worst staff!",
    "The food was not good.",
    "We arrived at noon.",
    "The food was good.",
    "Wonderful staff, and we loved the excellent food!",
]


def test_polarity_is_the_compound_score_of_vader() -> None:
    """good: 1.9 in the lexicon; compound = s / √(s² + 15); a negation multiplies s by -0.74."""
    polarity = LexiconSentiment()["polarity"](["It was good.", "It was not good."])
    expected = [s / np.sqrt(s**2 + 15) for s in (1.9, -0.74 * 1.9)]
    assert polarity == pytest.approx(expected, abs=1e-4)


def test_wrong_labels_and_options() -> None:
    scorer = LexiconSentiment()
    samples = Samples(TEXTS[:2], labels=["positive", "fine"])
    for check in (scorer.score, scorer.check_samples):
        with pytest.raises(ItemError, match=r"labels\[1\]"):
            check(samples)
    scorer.check_samples(samples, ["polarity"])
    with pytest.raises(ValueError, match="labels"):
        LexiconSentiment(labels=["a", "a"])


def test_accuracy_is_agreement_with_the_label_and_neutral_is_wrong() -> None:
    for names in (("negative", "positive"), ("-", "+")):
        scorer = LexiconSentiment(labels=names)
        negative, positive = (scorer["accuracy"](TEXTS, labels=name) for name in names)
        assert positive.tolist() == [0, 0, 0, 1, 1]
        assert negative.tolist() == [1, 1, 0, 0, 0]


def test_polarity_needs_no_labels_and_accuracy_does() -> None:
    scorer = LexiconSentiment()
    names = {"p": scorer["polarity"]}
    assert score(names, Samples(TEXTS)).scores["p"].shape == (5,)
    both = {**names, "a": scorer["accuracy"]}
    with pytest.raises(MissingColumn, match="labels"):
        score(both, Samples(TEXTS))
    assert set(score(both, Samples(TEXTS, labels=["negative"] * 5)).scores) == {"p", "a"}
