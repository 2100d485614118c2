from __future__ import annotations

import logging

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ctrlreward.recipes.papers.ctc.generators import Paraphraser, farthest

TEXTS = ["The food was good.", "We waited an hour for a table.", "Great!"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("batch_tokens", [1, 2048])
def test_equals_one_text_at_a_time(tiny_bart: str, batch_tokens: int) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_bart).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_bart)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer(f"again: {text}").input_ids])
        written = model.generate(ids, num_beams=2, do_sample=False, max_new_tokens=8)
        expected.append(tokenizer.decode(written[0], skip_special_tokens=True)[:12].strip())
    paraphrase = Paraphraser(tiny_bart, "again: {text}", batch_tokens=batch_tokens, beams=2)
    paraphrases = paraphrase(TEXTS)
    assert [
        text[: len(start)] for text, start in zip(paraphrases, expected, strict=True)
    ] == expected
    assert all("<" + token not in text for text in paraphrases for token in ("pad>", "s>", "/s>"))


def test_texts_that_are_too_long_have_none(
    tiny_bart: str, caplog: pytest.LogCaptureFixture
) -> None:
    paraphrase = Paraphraser(tiny_bart, beams=1)
    nearly = "food" + " food" * 55
    assert 50 < len(paraphrase.generator.tokenizer(nearly).input_ids) <= 64
    with caplog.at_level(logging.WARNING, "ctrlreward"):
        paraphrases = paraphrase([TEXTS[0], "food " * 80, nearly])
    assert [bool(text) for text in paraphrases] == [True, False, True]
    assert [message.split(" has ")[0] for message in caplog.messages] == [
        "'food food food food food food food fo…'"
    ]


def test_the_farthest_of_several_paraphrases_is_taken(tiny_bart: str) -> None:
    text = "the soup was cold today"
    near, far = "the soup was cold", "today we had a cold soup"
    assert farthest(text, [near, far, text]) == far
    assert farthest(text, [near]) == near
    assert farthest(text, []) == ""
    one, several = Paraphraser(tiny_bart, beams=4), Paraphraser(tiny_bart, beams=4, candidates=4)
    candidates = several.generator.candidates(TEXTS)
    assert [len(row) for row in candidates] == [4] * len(TEXTS)
    assert [row[0].strip() for row in candidates] == one(TEXTS)
    stripped = [[written.strip() for written in row] for row in candidates]
    assert several(TEXTS) == list(map(farthest, TEXTS, stripped))
