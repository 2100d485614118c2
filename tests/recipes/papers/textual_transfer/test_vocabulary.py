from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ctrlreward.recipes.papers.textual_transfer.vocabulary import (
    EOS,
    GO,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    subword_vocabulary,
    vocabulary_from_json,
    word_vocabulary,
)

SENTENCES = ["the soup was warm .", "the room was small and the bed was old .", "Warm  soup !"]


def decoded(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    ids = tokenizer(text).input_ids
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_words_are_those_that_occur_often_enough(data_dir: Path) -> None:
    lines = (data_dir / "yelp_shen" / "sentiment.test.0").read_text("utf-8").splitlines()[:3000]
    counts = Counter(word for line in lines for word in line.lower().split())
    tokenizer = word_vocabulary(lines)
    words = tokenizer.convert_ids_to_tokens(range(4, len(tokenizer)))
    assert set(words) == {word for word, count in counts.items() if count >= 5}
    falling = [counts[word] for word in words]
    assert falling == sorted(falling, reverse=True)
    assert tokenizer.get_vocab() == word_vocabulary(reversed(lines)).get_vocab()
    for line in lines[:200]:
        known = [word if counts[word] >= 5 else "<unk>" for word in line.split()]
        assert decoded(tokenizer, line) == " ".join(known)


@pytest.mark.parametrize("build", [
    lambda: word_vocabulary(SENTENCES, 1), lambda: subword_vocabulary(SENTENCES, 40)])  # fmt: skip
def test_special_tokens_come_first_and_are_not_added(build) -> None:
    tokenizer = build()
    assert tokenizer.convert_ids_to_tokens([PAD, GO, EOS, UNK]) == list(SPECIAL_TOKENS)
    names = (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)
    assert names == SPECIAL_TOKENS
    ids = [i for sentence in SENTENCES for i in tokenizer(sentence).input_ids]
    assert min(ids) > UNK
    again = vocabulary_from_json(tokenizer.backend_tokenizer.to_str())
    assert again.get_vocab() == tokenizer.get_vocab()
    assert [again(s).input_ids for s in SENTENCES] == [tokenizer(s).input_ids for s in SENTENCES]
    assert (again.pad_token_id, again.unk_token_id) == (PAD, UNK)


@given(st.lists(st.text("soupwarm.é", min_size=1, max_size=9), min_size=1, max_size=6))
@settings(max_examples=50)
def test_subwords_give_back_any_text_of_known_characters(words: list[str]) -> None:
    text = " ".join(words)
    tokenizer = subword_vocabulary([*SENTENCES, "soupwarm.é"], 60)
    assert decoded(tokenizer, text.upper().replace(" ", "  ")) == text.upper().lower()


def test_subwords_of_real_sentences(data_dir: Path) -> None:
    lines = (data_dir / "yelp_shen" / "sentiment.test.1").read_text("utf-8").splitlines()[:1000]
    tokenizer = subword_vocabulary(lines, 500)
    assert len(tokenizer) == 500
    assert [decoded(tokenizer, line) for line in lines] == [
        " ".join(line.split()) for line in lines
    ]
    lengths = [len(ids) for ids in tokenizer(lines).input_ids]
    assert sum(lengths) < 0.5 * sum(map(len, lines))  # merges shorten
    again = subword_vocabulary(lines, 500).backend_tokenizer
    assert tokenizer.backend_tokenizer.to_str() == again.to_str()
    assert decoded(tokenizer, "so ☃ .") == "so <unk> ."
