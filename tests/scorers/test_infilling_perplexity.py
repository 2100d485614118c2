from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from asked_models import blank
from plain_models import PlainSeq2Seq
from transformers import AutoTokenizer

from ctrlreward import CTRLEval, Perplexity, Samples
from ctrlreward.scorers.base import score
from ctrlreward.scorers.perplexity import InfillingPerplexity

TEXTS = [
    "The food was good. The staff was friendly and quick.",
    "We waited an hour. Then the soup came cold! Nobody said sorry.",
    "A dog slept under the table.",
]
SENTENCES = [
    ["The food was good.", "The staff was friendly and quick."],
    ["We waited an hour.", "Then the soup came cold!", "Nobody said sorry."],
    ["A dog slept under the table."],
]


def one_by_one(family: str, folder: str, sentences: list[str]) -> np.ndarray:
    """transformers alone: log-probabilities of the tokens of all sentences, one pass for each."""
    plain = PlainSeq2Seq(family, folder)
    found = []
    for i, sentence in enumerate(sentences):
        left, right = " ".join(sentences[:i]), " ".join(sentences[i + 1 :])
        asked = blank(f"{left} ", f" {right}", (sentence,), ends=True)
        found.append(plain.log_probs(*plain.passes(asked, sentence)))
    return np.concatenate(found)


@pytest.mark.parametrize("batch_tokens", [1, 8192])
@pytest.mark.parametrize("family", ["pegasus", "t5", "bart"])
def test_equals_one_plain_pass_per_sentence(
    family: str, batch_tokens: int, seq2seq_folders: dict[str, str]
) -> None:
    folder = seq2seq_folders[family]
    scores = InfillingPerplexity(folder, batch_tokens=batch_tokens).score(TEXTS)
    expected = [one_by_one(family, folder, sentences).mean() for sentences in SENTENCES]
    assert np.ptp(expected) > 0.1  # texts are told apart
    np.testing.assert_allclose(scores["infilling_log_likelihood"], expected, atol=2e-5)
    np.testing.assert_allclose(scores["infilling_perplexity"], np.exp(np.negative(expected)), 1e-4)


def test_a_text_scores_the_same_alone_and_beside_ctrleval(pegasus: str) -> None:
    scorer = InfillingPerplexity(pegasus)
    together = scorer.score(TEXTS)["infilling_log_likelihood"]
    alone = [scorer.score([text])["infilling_log_likelihood"][0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    coherence = CTRLEval(pegasus, aspects="coherence", weights="mean")
    components = {"p": scorer["infilling_log_likelihood"], "c": coherence["coherence"]}
    beside = score(components, Samples(TEXTS))
    np.testing.assert_allclose(beside["p"], together, atol=1e-6)
    # Of one sentence, both are the same mean.
    assert beside["c"][2] == pytest.approx(together[2], abs=1e-6)
    assert abs(beside["c"][1] - together[1]) > 1e-3  # over sentences and over tokens


def test_a_single_sentence_under_a_decoder_only_model_has_its_plain_perplexity(
    tiny_llama: Callable[[str], str], one_thread: None
) -> None:
    folder = tiny_llama(" abcdefghijklmnopqrstuvwxyzT.")
    text = ["The lake froze.", "The soup was cold."]
    found = InfillingPerplexity(folder).score(text)["infilling_perplexity"]
    np.testing.assert_allclose(found, Perplexity(folder).score(text)["perplexity"], rtol=1e-5)


def test_a_corpus_is_the_tokens_of_all_texts(pegasus: str) -> None:
    scorer = InfillingPerplexity(pegasus)
    fold = scorer["infilling_perplexity"].corpus_folds[""]
    assert fold is not None
    scores = scorer.score_samples(Samples([*TEXTS, ""]), fold.parts)
    pooled = np.concatenate([one_by_one("pegasus", pegasus, part) for part in SENTENCES])
    found = fold.fold(*(scores[part] for part in fold.parts))
    assert found == pytest.approx(np.exp(-pooled.mean()), rel=1e-4)


def test_an_empty_text_is_nan_and_a_text_without_sentences_is_one(
    pegasus: str, caplog: pytest.LogCaptureFixture
) -> None:
    scores = InfillingPerplexity(pegasus).score([" ", TEXTS[2]])["infilling_perplexity"]
    assert np.isnan(scores).tolist() == [True, False]
    assert "texts[0] is empty: infilling_perplexity is NaN" in caplog.messages
    unsplit = InfillingPerplexity(pegasus, sentence_splitter=lambda text: [])
    assert unsplit.score([TEXTS[2]])["infilling_perplexity"][0] == pytest.approx(scores[1])


def test_only_the_first_tokens_are_read(pegasus: str) -> None:
    with pytest.raises(ValueError, match="max_tokens must be positive, got 0"):
        InfillingPerplexity(pegasus, max_tokens=0)
    first = "We waited an hour."
    tokens = len(AutoTokenizer.from_pretrained(pegasus)(first, add_special_tokens=False).input_ids)
    cut = InfillingPerplexity(pegasus, max_tokens=tokens).score([TEXTS[1]])
    whole = InfillingPerplexity(pegasus).score([first])
    np.testing.assert_allclose(
        cut["infilling_perplexity"], whole["infilling_perplexity"], rtol=1e-6
    )
