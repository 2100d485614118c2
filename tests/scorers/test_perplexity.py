from __future__ import annotations

import math
from collections.abc import Callable
from string import ascii_lowercase

import numpy as np
import pytest
from plain_models import PlainCausal

from ctrlreward.samples import Samples
from ctrlreward.scorers.perplexity import Perplexity

TEXTS = ["the food was good", "bad", "the staff was kind and the food was slow", "good good good"]


@pytest.fixture(scope="module")
def folder(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(ascii_lowercase + " ")


def log_probs_one_by_one(folder: str, texts: list[str]) -> list[np.ndarray]:
    """Log-probabilities of each text's tokens with transformers alone."""
    plain = PlainCausal(folder)
    return [plain.log_probs([0, *plain.tokens("", text)[0]], 1) for text in texts]


@pytest.mark.parametrize("batch_tokens", [1, 8192])
def test_equals_one_text_at_a_time(folder: str, batch_tokens: int) -> None:
    scores = Perplexity(folder, batch_tokens=batch_tokens).score(Samples(TEXTS))
    expected = np.array([values.mean() for values in log_probs_one_by_one(folder, TEXTS)])
    np.testing.assert_allclose(scores["log_likelihood"], expected, atol=1e-5)
    np.testing.assert_allclose(scores["perplexity"], np.exp(-expected), rtol=1e-5)
    assert expected.std() > 0.1  # the texts differ in likelihood


def test_the_end_of_a_text_can_count(folder: str) -> None:
    ended = log_probs_one_by_one(folder, [f"{text}<|endoftext|>" for text in TEXTS])
    assert [len(values) for values in ended] == [len(text) + 1 for text in TEXTS]
    scorer = Perplexity(folder, score_end=True)
    scores = scorer.score(Samples(TEXTS))["log_likelihood"]
    np.testing.assert_allclose(scores, [values.mean() for values in ended], atol=1e-5)
    tokens = np.concatenate(ended)
    assert scorer.corpus(TEXTS)["perplexity"] == pytest.approx(math.exp(-tokens.mean()), rel=1e-5)
    assert math.isnan(scorer.score([""])["perplexity"][0])
    begin = "the staff was"  # a truncated text has no end
    cut = Perplexity(folder, score_end=True, max_tokens=len(begin))
    (begun,) = log_probs_one_by_one(folder, [begin])
    assert cut.score(TEXTS[2:3])["log_likelihood"][0] == pytest.approx(begun.mean(), abs=1e-5)


def test_corpus_perplexity_weighs_texts_by_their_tokens(folder: str) -> None:
    tokens = np.concatenate(log_probs_one_by_one(folder, TEXTS))
    value = Perplexity(folder).corpus(Samples([*TEXTS, ""]))["perplexity"]
    assert value == pytest.approx(math.exp(-tokens.mean()), rel=1e-5)
    assert math.isnan(Perplexity(folder).corpus(Samples([""]))["perplexity"])
