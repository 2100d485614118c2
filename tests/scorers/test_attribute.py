from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from failed_rows import failures_of
from hypothesis import given
from hypothesis import strategies as st
from word_classifiers import CountingWords

from ctrlreward.failures import ItemError
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.attribute import AttributeClassifier, attribute_label
from ctrlreward.scorers.base import Scores

SENTIMENT = CountingWords(negative="bad", positive="good")
TOPIC = CountingWords(world="peace", sports="ball", business="money")
CLASSIFIERS: dict[str, str | LabelProbabilities] = {"sentiment": SENTIMENT, "topic": TOPIC}
WORDS = "good bad peace ball money the".split()


def by_hand(text: str, targets: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Decision and probability for each target attribute, by counting."""
    result = {}
    for attribute, label in targets.items():
        words = {"sentiment": SENTIMENT, "topic": TOPIC}[attribute].words
        counts = {name: text.split().count(word) + 0.5 for name, word in words.items()}
        first = max(counts, key=lambda name: counts[name])
        result[attribute] = (float(first == label), counts[label] / sum(counts.values()))
    return result


Drawn = tuple[str, str | None, str | None, bool]
samples_of_attributes = st.lists(
    st.tuples(
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join),
        st.sampled_from(["negative", "positive", None]),
        st.sampled_from(["world", "sports", "business", None]),
        st.booleans(),
    ).filter(lambda sample: sample[1] is not None or sample[2] is not None),
    min_size=1,
    max_size=12,
)


def targets_of(drawn: list[Drawn]) -> list[dict[str, str | None]]:
    """Target labels of each sample, in either order."""
    pairs = [[("sentiment", a), ("topic", b)][:: -1 if first else 1] for _, a, b, first in drawn]
    return [dict(row) for row in pairs]


@given(samples_of_attributes)
def test_equals_one_sample_at_a_time_by_hand(drawn: list[Drawn]) -> None:
    targets = targets_of(drawn)
    texts = [text for text, *_ in drawn]
    samples = Samples(texts, labels=[attribute_label(row) for row in targets])
    scores = AttributeClassifier(CLASSIFIERS).score(samples)
    for i, row in enumerate(targets):
        expected = by_hand(texts[i], {a: label for a, label in row.items() if label})
        for place, name in enumerate(("accuracy", "label_probability")):
            mean = statistics.mean(values[place] for values in expected.values())
            assert scores[name][i] == pytest.approx(mean)
            for attribute in CLASSIFIERS:
                value = expected[attribute][place] if attribute in expected else np.nan
                assert scores[f"{name}_{attribute}"][i] == pytest.approx(value, nan_ok=True)


@given(samples_of_attributes)
def test_a_corpus_equals_a_loop_over_combinations(drawn: list[Drawn]) -> None:
    """Also where a text is empty or a classifier fails; the order of attributes is no matter."""

    class Silent(CountingWords):
        def probabilities(self, texts: Sequence[str]) -> Scores:
            table = super().probabilities(texts)
            table[["the" in text for text in texts]] = np.nan
            return table

    silent = Silent(world="peace", sports="ball", business="money")
    scorer = AttributeClassifier({"sentiment": SENTIMENT, "topic": silent})
    labels = [attribute_label(row) for row in targets_of(drawn)]
    samples = Samples([*(text for text, *_ in drawn), " "], labels=[*labels, labels[0]])
    corpus, scores = scorer.corpus(samples), scorer.score(samples)
    combinations = [frozenset(row.items()) for row in targets_of(drawn)]
    combinations.append(combinations[0])
    for name in scores:
        total = scores["accuracy" if name.startswith("accuracy") else "label_probability"]
        groups: dict[frozenset[tuple[str, str | None]], list[float]] = {}
        for key, value, whole in zip(combinations, scores[name], total, strict=True):
            if not np.isnan(value) and not np.isnan(whole):
                groups.setdefault(key, []).append(float(value))
        means = [statistics.mean(values) for values in groups.values()] or [np.nan]
        deviation = statistics.pstdev(means) if groups else np.nan
        assert corpus[name] == pytest.approx(statistics.mean(means), nan_ok=True)
        assert corpus[f"{name}_deviation"] == pytest.approx(deviation, nan_ok=True)


def test_one_classifier_takes_plain_labels_and_equals_accuracy() -> None:
    texts = ["good good bad", "bad", "good"]
    plain = Samples(texts, labels=["positive", "positive", "negative"])
    scores = AttributeClassifier({"sentiment": SENTIMENT}).score(plain)
    for name, values in Accuracy(SENTIMENT).score(plain).items():
        np.testing.assert_array_equal(scores[name], values)
        np.testing.assert_array_equal(scores[f"{name}_sentiment"], values)
    named = plain.replace(labels=[f"sentiment={label}" for label in plain.labels or ()])
    again = AttributeClassifier({"sentiment": SENTIMENT}).score(named)
    np.testing.assert_array_equal(again["label_probability"], scores["label_probability"])


def test_labels_may_hold_spaces_and_signs() -> None:
    tones = CountingWords(**{"very good": "good", "Sci/Tech": "ball", "-": "bad"})
    samples = Samples(["good", "ball"], labels=["tone=very good  other=a b", "tone=Sci/Tech"])
    scores = AttributeClassifier(
        {"tone": tones, "other": CountingWords(**{"a b": "good", "c": "bad"})}
    ).score(samples)
    np.testing.assert_array_equal(scores["accuracy_tone"], [1, 1])
    np.testing.assert_array_equal(scores["accuracy_other"], [1, np.nan])


def test_an_empty_label_is_nan_and_named() -> None:
    samples = Samples(["good", "good"], labels=["sentiment=positive", ""])
    scorer = AttributeClassifier(CLASSIFIERS)
    np.testing.assert_array_equal(scorer.score(samples)["accuracy"], [1, np.nan])
    assert failures_of(scorer, samples).keys() == {1}


@pytest.mark.parametrize("models", [{}, {"a b": SENTIMENT}])
def test_wrong_models(models: dict[str, CountingWords]) -> None:
    with pytest.raises(ValueError, match="models"):
        AttributeClassifier(models)


@pytest.mark.parametrize(
    "label", ["negative", "topic=world topic=sports", "tone=calm", "topic=war", "topic="]
)
def test_a_wrong_label_raises(label: str) -> None:
    samples = Samples(["good", "bad"], labels=["topic=world", label])
    with pytest.raises(ItemError) as raised:
        AttributeClassifier(CLASSIFIERS).score(samples)
    assert (raised.value.column, raised.value.row) == ("labels", 1)
    with pytest.raises(ItemError):
        AttributeClassifier(CLASSIFIERS).check_samples(samples)
