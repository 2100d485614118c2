"""Chats are read as the tokens of `apply_chat_template`, by every model that reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asked_models import inputs_seen
from tiny_models import CHATS, save_reward_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

from ctrlreward import Judge, RewardModel, Rubric, Samples
from ctrlreward.huggingface.generation import TrainerGenerator
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import Continuation
from ctrlreward.policy.prompts import model_texts
from ctrlreward.policy.rollouts import Generation, encode_prompts

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTION, ANSWER = "Was the food good?", "It was cold."
CONVERSATION = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Good day."},
    {"role": "user", "content": QUESTION},
]
PROMPTS: list[Any] = [QUESTION, CONVERSATION]


def messages(prompt: Any) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def template_ids(tokenizer: Any, turns: list[dict[str, str]], generate: bool) -> list[int]:
    return list(
        tokenizer.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=generate, return_dict=False
        )
    )


def unpadded(inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    rows = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in rows]


@pytest.mark.parametrize("kind", CHATS)
def test_a_judge_reads_what_the_template_makes_of_the_prompt(
    kind: str, chat_folder: Callable[[str], str]
) -> None:
    folder = chat_folder(kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    judge = Judge(folder, Rubric("Rate from 1 to 3: {text}", [1, 2, 3]))
    texts = [ANSWER, "The staff was friendly."]
    for text, rating in zip(texts, judge["rating"](texts), strict=True):
        context = template_ids(tokenizer, messages(f"Rate from 1 to 3: {text}"), True)
        chances = []
        for answer in "123":
            ids = tokenizer(answer, add_special_tokens=False).input_ids
            with torch.inference_mode():
                table = model(torch.tensor([context + ids])).logits[0].log_softmax(-1)
            chances.append(sum(table[len(context) - 1 + i, k].item() for i, k in enumerate(ids)))
        shares = np.exp(chances)
        assert rating == pytest.approx(shares @ [1, 2, 3] / shares.sum(), abs=1e-5)


@pytest.mark.parametrize("kind", CHATS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "conversation"])
def test_a_reward_model_reads_what_the_template_makes_of_the_conversation(
    kind: str, prompt: Any, chat_folder: Callable[[str], str], tmp_path: Path
) -> None:
    folder = save_reward_model(tmp_path, chat_folder(kind))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = [*messages(prompt), {"role": "assistant", "content": ANSWER}]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = template_ids(tokenizer, turns, False)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids])).logits.item()
    found = RewardModel(folder).score([ANSWER], prompts=[prompt])["reward"]
    assert found[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", CHATS)
def test_a_policy_reads_what_the_template_makes_of_the_prompt(
    kind: str, chat_folder: Callable[[str], str]
) -> None:
    folder = chat_folder(kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    kept = Samples(["", ""], prompts=PROMPTS).prompts
    assert kept is not None
    texts = model_texts(tokenizer, Generation(chat=True), kept)  # a conversation is JSON
    ids, mask = encode_prompts(model, tokenizer, texts, special_tokens=False)
    read = unpadded({"input_ids": ids, "attention_mask": mask})
    assert read == [template_ids(tokenizer, messages(prompt), True) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", CHATS)
def test_the_model_of_a_trainer_reads_what_the_template_makes_of_the_prompt(
    kind: str, chat_folder: Callable[[str], str], tmp_path: Path
) -> None:
    folder = chat_folder(kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(folder),
        TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True),
        processing_class=tokenizer,
    )
    chats = [messages(prompt) for prompt in PROMPTS]
    own = Samples(["", ""], prefixes=["", ""], prompts=chats)
    for samples in ({"prompt": chats}, own):
        generator = TrainerGenerator(trainer, samples, {"max_new_tokens": 1})
        assert trainer.model is not None
        with inputs_seen(trainer.model) as seen:
            generator.generate(generator.samples.as_prompts(), 1, 0)
        assert unpadded(seen[0]) == [template_ids(tokenizer, chat, True) for chat in chats]


def test_a_token_does_not_reach_from_a_chat_into_the_answer(
    tiny_causal: Callable[..., str],
) -> None:
    lm = CausalLM(tiny_causal("llama"))
    model = AutoModelForCausalLM.from_pretrained(tiny_causal("llama"))
    context, target = "The food was g", "ood"
    before, after = (lm.tokenizer(text).input_ids for text in (context, target))
    assert lm.tokenizer(context + target).input_ids != before + after
    targets = (((), (target,)), ((), (" and",)))
    (found,) = lm.answer([Continuation((context,), targets, chat=True)])
    with torch.inference_mode():
        table = model(torch.tensor([before + after])).logits[0].double().log_softmax(-1)
    expected = [table[len(before) - 1 + i, token].item() for i, token in enumerate(after)]
    first, _ = found.split([1, 1])
    assert first.ids.tolist() == after
    np.testing.assert_allclose(first.log_probs, expected, atol=1e-5)
    # A chat and a text of the same characters are not mistaken for each other.
    text, again = lm.answer(
        [Continuation((context,), targets), Continuation((context,), targets, chat=True)]
    )
    np.testing.assert_allclose(again.log_probs, found.log_probs, atol=1e-5)
    assert text.ids.tolist() != found.ids.tolist()
