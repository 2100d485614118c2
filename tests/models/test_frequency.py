from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from transformers import PreTrainedTokenizerBase
from word_models import word_tokenizer

from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.sentences import split_sentences

UNKNOWN = {"unk_token": "[UNK]"}
WORDS = ["[UNK]", "the", "food", "is", "good", "##s"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return word_tokenizer(WORDS[1:], UNKNOWN)


def test_wordfreq_strips_the_marks_of_every_tokenizer(
    tiny_t5: str, tiny_bart: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    expected = InverseFrequency.from_wordfreq(word_tokenizer(["the", "table"], UNKNOWN)).weights
    for model, mark in ((tiny_t5, "▁"), (tiny_bart, "Ġ")):
        one = load_tokenizer(model)
        tokens = [one.get_vocab()[mark + word] for word in ("the", "table")]
        found = InverseFrequency.from_wordfreq(one).weights[tokens]
        assert 0 < found[0] < found[1]
        np.testing.assert_allclose(found, expected[1:])
    # A continuation of WordPiece.
    assert InverseFrequency.from_wordfreq(tokenizer).weights[WORDS.index("##s")] > 0


def test_wordfreq_gives_nothing_to_special_tokens(pegasus: str) -> None:
    words = load_tokenizer(pegasus)
    weights = InverseFrequency.from_wordfreq(words).weights
    assert not weights[words.convert_tokens_to_ids(["<pad>", "</s>", "<mask_1>", "<unk>"])].any()
    assert weights.any()


def test_wordfreq_orders_sentences_as_the_published_table_does(
    data_dir: Path,
) -> None:
    published = InverseFrequency.from_file(data_dir / "ctrleval" / "iwf_full.txt")
    words = load_tokenizer(str(data_dir / "tokenizers" / "pegasus"))
    lines = (data_dir / "ctrleval" / "data_senti.txt").read_text("utf-8").splitlines()
    sentences = [s for line in lines for s in split_sentences(line.split("\t")[2])]
    ids = words(sentences, add_special_tokens=False)["input_ids"]
    default = InverseFrequency.from_wordfreq(words)
    weights = [[table.sentence_weight(row) for row in ids] for table in (default, published)]
    assert spearmanr(*weights).statistic > 0.75  # 0.79 with wordfreq 3.1.1
    assert published.require(len(words)) is published
    # log(1 + |C|) / f with a whole f, for one and the same |C|.
    f = math.log(1 + 98_344_542) / published.weights[published.weights > 0]
    np.testing.assert_allclose(f, np.round(f), rtol=1e-9)


@pytest.mark.parametrize("weights", [[[1.0]], [1.0, -2.0], [math.nan]])
def test_weights_that_are_none(weights: list) -> None:
    with pytest.raises(ValueError, match="weight"):
        InverseFrequency(np.array(weights))


@given(st.lists(st.integers(0, 4)))
def test_a_sentence_weighs_as_its_rarest_token(ids: list[int]) -> None:
    weights = [0.0, 3.0, 1.0, 0.5, 2.0]
    expected = max((weights[i] for i in ids), default=0.0)
    assert InverseFrequency(np.array(weights)).sentence_weight(ids) == expected
