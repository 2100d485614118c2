from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from plain_models import PlainCausal
from transformers import LlamaConfig, LlamaForCausalLM
from word_models import word_tokenizer

from ctrlreward.samples import Samples
from ctrlreward.scorers.perplexity import Perplexity

WORDS = "the food was good bad slow and staff kind lake".split()
TEXTS = ["the food was good", "bad", "the staff was kind and the food was slow", "good good good"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    tokens = {"vocab_size": 12, "bos_token_id": 0, "eos_token_id": 0}
    config = LlamaConfig(
        **shape, **tokens, num_attention_heads=2, max_position_embeddings=64, initializer_range=0.7
    )
    LlamaForCausalLM(config).save_pretrained(path)
    special = {"eos_token": "<|endoftext|>", "unk_token": "[UNK]"}
    word_tokenizer(WORDS, special).save_pretrained(path)
    return str(path)


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
    assert [len(values) for values in ended] == [len(text.split()) + 1 for text in TEXTS]
    scorer = Perplexity(folder, score_end=True)
    scores = scorer.score(Samples(TEXTS))["log_likelihood"]
    np.testing.assert_allclose(scores, [values.mean() for values in ended], atol=1e-5)
    tokens = np.concatenate(ended)
    assert scorer.corpus(TEXTS)["perplexity"] == pytest.approx(math.exp(-tokens.mean()), rel=1e-5)
    assert math.isnan(scorer.score([""])["perplexity"][0])
    cut = Perplexity(folder, score_end=True, max_tokens=3)  # a truncated text has no end
    (begun,) = log_probs_one_by_one(folder, ["the staff was"])
    assert cut.score(TEXTS[2:3])["log_likelihood"][0] == pytest.approx(begun.mean(), abs=1e-5)


def test_corpus_perplexity_weighs_texts_by_their_tokens(folder: str) -> None:
    tokens = np.concatenate(log_probs_one_by_one(folder, TEXTS))
    value = Perplexity(folder).corpus(Samples([*TEXTS, ""]))["perplexity"]
    assert value == pytest.approx(math.exp(-tokens.mean()), rel=1e-5)
    assert math.isnan(Perplexity(folder).corpus(Samples([""]))["perplexity"])
