from __future__ import annotations

import pytest
from transformers import BertConfig, PreTrainedTokenizerFast, RobertaConfig, T5Config
from word_models import word_tokenizer

from ctrlreward.models.tokenization import encode_texts, first_tokens, max_tokens


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = word_tokenizer(["a", "b"])
    tokenizer.model_max_length = 64
    return tokenizer


def test_short_texts_are_left_whole(
    tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    assert encode_texts(tokenizer, ["a b", "", "b"], limit=4) == [(2, 4, 5, 3), (2, 3), (2, 5, 3)]
    assert encode_texts(tokenizer, [], limit=4) == []
    assert not caplog.records


def test_a_long_text_is_cut_within_its_special_tokens_and_named(
    tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    rows = encode_texts(tokenizer, ["a", "a b a b a b"], limit=4)
    assert rows == [(2, 4, 3), (2, 4, 5, 3)]
    (message,) = caplog.messages
    assert "8" in message


def test_the_beginning_of_a_long_text_has_the_ids_of_the_whole(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    for text in ("a b  " * 4000, "a" * 4000, "  " * 4000, "a " * 33 + " " * 4000 + "b"):
        spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in spans.offset_mapping]
        for limit in (1, 3, 64):
            expected = text[: ends[limit - 1]] if len(ends) > limit else text
            assert first_tokens(tokenizer, [text], limit) == [expected]


def test_limit_of_a_model(tokenizer: PreTrainedTokenizerFast) -> None:
    assert max_tokens(tokenizer, BertConfig(max_position_embeddings=32)) == 32
    assert max_tokens(tokenizer, BertConfig(max_position_embeddings=512)) == 64
    # RoBERTa counts positions from 2 on: its 34 hold 32 tokens.
    assert max_tokens(tokenizer, RobertaConfig(max_position_embeddings=34)) == 32
    assert max_tokens(tokenizer, T5Config()) == 64
