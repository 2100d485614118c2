from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, PreTrainedTokenizerFast, RobertaConfig, T5Config
from word_models import word_tokenizer

from ctrlreward.engine.batching import pad_rows, run_distinct
from ctrlreward.models.tokenization import encode_texts, max_tokens


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
    assert caplog.messages == [
        "texts[1] has 8 tokens and is truncated to the 4 that the model reads"
    ]


def test_many_long_texts_give_one_warning(
    tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    encode_texts(tokenizer, ["a b a", "b b b", "a a a"], limit=4, name="sources[{}]".format)
    assert caplog.messages == [
        "sources[0] has 5 tokens and is truncated to the 4 that the model reads (and 2 more texts)"
    ]


def test_limit_of_a_model(tokenizer: PreTrainedTokenizerFast) -> None:
    assert max_tokens(tokenizer, BertConfig(max_position_embeddings=32)) == 32
    assert max_tokens(tokenizer, BertConfig(max_position_embeddings=512)) == 64
    # RoBERTa counts positions from 2 on: its 34 hold 32 tokens.
    assert max_tokens(tokenizer, RobertaConfig(max_position_embeddings=34)) == 32
    assert max_tokens(tokenizer, T5Config()) == 64


def test_equal_rows_are_computed_once_and_all_return_in_order() -> None:
    seen: list[tuple[int, ...]] = []

    def forward(rows: list[tuple[int, ...]]) -> list[int]:
        seen.extend(rows)
        return [sum(row) for row in rows]

    rows = [(1,), (5, 6, 7), (1,), (2, 3), (5, 6, 7)]
    assert run_distinct(rows, 4, forward, "sums") == [1, 18, 1, 5, 18]
    assert sorted(seen) == [(1,), (2, 3), (5, 6, 7)]
    assert run_distinct([], 4, forward, "sums") == []


def test_padding_stands_right_and_is_masked() -> None:
    ids, mask = pad_rows([(7, 8), (), (9,)], pad=0, device=torch.device("cpu"))
    assert ids.tolist() == [[7, 8], [0, 0], [9, 0]]
    assert mask.tolist() == [[1, 1], [0, 0], [1, 0]]
    assert pad_rows([()], pad=0, device=torch.device("cpu"))[0].shape == (1, 1)
