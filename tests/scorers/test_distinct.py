from __future__ import annotations

import numpy as np
import pytest
from failed_rows import failures_of
from transformers import PreTrainedTokenizerBase
from word_models import word_tokenizer

from ctrlreward.samples import Samples
from ctrlreward.scorers.distinct import Distinct, Repetition


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerBase:
    words = "a b c d e f The food lake is good bad".split()
    return word_tokenizer(words, {"unk_token": "[UNK]"})


def test_each_sample_gets_its_groups_value(words: PreTrainedTokenizerBase) -> None:
    texts = [" a a a a", " a b", " c d e f", " a b"]
    scores = Distinct(words).score(Samples(texts, groups=["x", "y", "x", "y"]))
    # x: a, c, d, e, f in 8 tokens; bigrams aa, cd, de, ef. y: a, b in 4 tokens; one bigram.
    np.testing.assert_allclose(scores["distinct_1"], [5 / 8, 2 / 4, 5 / 8, 2 / 4])
    np.testing.assert_allclose(scores["distinct_2"], [4 / 8, 1 / 4, 4 / 8, 1 / 4])
    np.testing.assert_allclose(scores["distinct_3"], [3 / 8, 0, 3 / 8, 0])
    np.testing.assert_allclose(scores["distinct"], [12 / 24, 3 / 12, 12 / 24, 3 / 12])


def test_prefixes_are_groups_where_there_are_none(words: PreTrainedTokenizerBase) -> None:
    texts = ["The food is good", "The lake", "The food is bad"]
    prefixes = ["The food", "The lake", "The food"]
    by_prefix = Distinct(words).score(Samples(texts, prefixes=prefixes))
    by_group = Distinct(words).score(Samples(texts, prefixes=[""] * 3, groups=prefixes))
    for name, values in by_prefix.items():
        np.testing.assert_array_equal(values, by_group[name])
    assert by_prefix["distinct_1"][1] == 1
    assert by_prefix["distinct_1"][0] == by_prefix["distinct_1"][2] == 5 / 8


def test_conversations_are_groups_where_there_are_no_others(words: PreTrainedTokenizerBase) -> None:
    prompts = [[{"role": "user", "content": content}] for content in "aba"]
    by_prompt = Distinct(words).score(outputs=["a b", "c c", "a a"], prompts=prompts)
    np.testing.assert_array_equal(by_prompt["distinct_1"], [2 / 4, 1 / 2, 2 / 4])


def test_without_groups_all_texts_are_one(words: PreTrainedTokenizerBase) -> None:
    texts = ["a b", "a c"]
    np.testing.assert_array_equal(Distinct(words).score(texts)["distinct_1"], [3 / 4, 3 / 4])
    numbered = Distinct(words).score(texts, groups=np.array([0, 1]))
    np.testing.assert_array_equal(numbered["distinct_1"], [1, 1])


def test_a_named_tokenizer_is_loaded() -> None:
    scores = Distinct("minilm-l6").score(Samples(["the the the"], groups=["x"]))
    assert scores["distinct_1"] == pytest.approx([1 / 3])  # no special tokens counted


def test_repetition_of_each_text(words: PreTrainedTokenizerBase) -> None:
    texts = ["a b a b a", "a b c d", "a", "", "a b a b a"]
    scores = Repetition(words, n=2).score(texts)["repetition"]
    np.testing.assert_array_equal(scores, [0.5, 0.0, np.nan, np.nan, 0.5])
    assert failures_of(Repetition(words, n=2), Samples(texts)).keys() == {2, 3}


def test_repetition_does_not_count_the_prefix(words: PreTrainedTokenizerBase) -> None:
    prefixes = ["a b a b", "a b", "a b", ""]
    ends = [" c d e", " a b a b", " b b b", "a b a b"]
    texts = [prefix + end for prefix, end in zip(prefixes, ends, strict=True)]
    scores = Repetition(words, n=2).score(Samples(texts, prefixes=prefixes))["repetition"]
    for score, end in zip(scores, ends, strict=True):
        own = end.split()
        pairs = [(own[i], own[i + 1]) for i in range(len(own) - 1)]
        repeated = sum(pair in pairs[:i] for i, pair in enumerate(pairs))
        assert score == pytest.approx(repeated / len(pairs))


def test_a_length_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="n"):
        Repetition(n=0)
