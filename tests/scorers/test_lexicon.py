from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlreward import LexiconSentiment, Samples
from ctrlreward.failures import ItemError
from ctrlreward.functional import auc
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


@pytest.mark.parametrize("name", ["polarity", "accuracy"])
def test_one_aspect_is_a_scorer_with_a_single_score(name: Any) -> None:
    scorer = LexiconSentiment(name)
    assert list(scorer.specs) == list(scorer.score(TEXTS, labels="positive")) == [name]


def test_wrong_labels_and_options() -> None:
    scorer = LexiconSentiment()
    samples = Samples(TEXTS[:2], labels=["positive", "fine"])
    for check in (scorer.score, scorer.check_samples):
        with pytest.raises(ItemError, match=r"labels\[1\]"):
            check(samples)
    scorer.check_samples(samples, ["polarity"])
    with pytest.raises(ValueError, match="aspects"):
        LexiconSentiment("subjectivity")  # type: ignore[arg-type]
    for labels in (["positive"], "ab", ["a", "a"]):
        with pytest.raises(ValueError, match="labels"):
            LexiconSentiment(labels=labels)


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


@pytest.mark.parametrize(
    ("files", "least"),
    [
        (("yelp_shen/sentiment.test.0", "yelp_shen/sentiment.test.1"), 0.91),
        (("li2018/reference.1", "li2018/reference.0"), 0.85),  # rewrites of the other sentiment
    ],
    ids=["yelp", "references"],
)
def test_it_tells_human_sentiment_apart(
    files: tuple[str, str], least: float, data_dir: Path
) -> None:
    """The measurement behind the choice of the lexicon (docs/scorers.md)."""
    lines = [(data_dir / name).read_text("utf-8").splitlines()[:1000] for name in files]
    negative, positive = ([line.split("\t")[-1] for line in each] for each in lines)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        polarity = LexiconSentiment()["polarity"]([*negative, *positive])
    assert auc(polarity, [False] * len(negative) + [True] * len(positive)) > least
