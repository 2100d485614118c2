"""Markers of ChatML on what the real tokenizer of SmolLM2 makes of a conversation."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from transformers import AutoTokenizer

from ctrlreward.serving.trainer_options import TemplateMarkers
from ctrlreward.weights import resolve

CHATML = {
    "response_start": "<|im_end|>\n<|im_start|>assistant\n",
    "response_end": "<|im_end|>\n",
    "prompt_start": "<|im_start|>user\n",
}
PROMPTS = ["Praise the soup.", " two\n\nlines, ", "assistant\nsays: user", ""]
RESPONSES = ["It is warm.", "\n padded  ", "<|im_start|>", ""]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("smollm2-135m"))


def conversation(prompt: str, response: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_prompt_and_response_are_those_of_the_conversation(tokenizer, system) -> None:
    first = [] if system is None else [{"role": "system", "content": system}]
    for prompt, response in product(PROMPTS, RESPONSES):
        chat = [*first, *conversation(prompt, response)]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        assert TemplateMarkers(**CHATML).split(text) == (prompt, response)
        # A trainer that sends what it decodes from tokens sends the same.
        ids = tokenizer.apply_chat_template(chat, return_dict=False)
        assert TemplateMarkers(**CHATML).split(tokenizer.decode(ids)) == (prompt, response)


def test_the_last_turn_of_several_is_the_response(tokenizer: Any) -> None:
    turns = [*conversation("Hello.", "Hi!"), *conversation("Praise the soup.", "It is warm.")]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    last = TemplateMarkers(**CHATML, response_at="last")
    assert last.split(text) == ("Praise the soup.", "It is warm.")


def test_a_generated_turn_lacks_the_templates_newline(tokenizer: Any) -> None:
    """A policy's own tokens end with the end of its turn, which the markers can name as well."""
    chat = conversation("Praise the soup.", "")[:1]
    asked = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    text = f"{asked}It is warm.{tokenizer.eos_token}"
    with pytest.raises(ValueError, match=r"template\.response_end"):
        TemplateMarkers(**CHATML).split(text)
    ended = TemplateMarkers(**{**CHATML, "response_end": tokenizer.eos_token})
    assert ended.split(text) == ("Praise the soup.", "It is warm.")
