"""Prompts through chat templates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from tuner_records import read_by, sampled, written_by

from ctrlreward import Samples

NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }}<|close|>{% endfor %}"
PROMPTS = ["Praise the soup.", "Say why the dog slept under the table."]


def conversation(prompt: str, system: str | None = None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]


@pytest.mark.parametrize("system", [None, "Answer in one word."])
def test_the_policy_reads_what_the_template_makes_of_the_prompt(chat, system: str | None) -> None:
    module = chat(system=system)
    rollout = module.rollout(PROMPTS)
    template = AutoTokenizer.from_pretrained(module.base_model).apply_chat_template
    assert read_by(rollout) == [
        template(conversation(prompt, system), add_generation_prompt=True, return_dict=False)
        for prompt in PROMPTS
    ]
    module = chat(system=system, chat_template_kwargs={"terse": True})
    (read, _) = read_by(module.rollout(PROMPTS))
    assert module.tokenizer.decode(read).endswith("<|open|>assistant\n!")


def test_the_end_of_turn_ends_a_completion(chat) -> None:
    module = chat(max_completion_length=40)
    torch.manual_seed(0)
    rollout = module.rollout(PROMPTS * 100)
    ends = {0, 2}  # the model's own, and the template's
    rows = written_by(rollout)
    finished = {row[-1] for row, ended in zip(rows, rollout.ended, strict=True) if ended}
    assert finished == ends
    assert not any(ends & {*row[:-1]} for row in rows)
    assert not any("<|" in text for text in rollout.completions)


def test_a_step_learns_from_chats_and_complete_uses_them_too(chat, share) -> None:
    module = chat()
    batch = Samples(texts=["", ""], prefixes=["", ""], prompts=PROMPTS)
    assert torch.isfinite(module.training_step(batch, 0))
    (scored,) = share.scored
    assert set(scored.prompts) == set(PROMPTS)  # as given, for rewards that read them
    assert not any(text.startswith("Praise") for text in scored.texts)
    rollouts = sampled(module)
    assert len(module.complete(PROMPTS[0])) == 1  # a string is one prompt
    template = "<|open|>user\nPraise the soup.<|close|>\n<|open|>assistant\n"
    assert module.tokenizer.decode(read_by(rollouts[0])[0]) == template
    with pytest.raises(ValueError, match="prefixes"):  # as if texts began with the message
        module.training_step(Samples(PROMPTS), 0)


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_template_without_system_messages_is_an_error(tuner, with_template, template) -> None:
    with pytest.raises(ValueError, match="chat template"):
        tuner(chat=True).configure_model()  # without any
    folder = with_template(template)
    tuner(model=folder, chat=True).configure_model()
    with pytest.raises(ValueError, match=r"generation\.system"):
        tuner(model=folder, chat=True, system="Be brief.").configure_model()


def test_an_encoder_reads_the_template_without_further_special_tokens(
    tuner, tiny_t5: str, tmp_path: Path
) -> None:
    folder = tmp_path / "t5-chat"
    shutil.copytree(tiny_t5, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}<extra_id_1>{% endfor %}"
    tokenizer.save_pretrained(folder)
    rollout = tuner(model=str(folder), chat=True).rollout(PROMPTS[:1])
    expected = tokenizer.apply_chat_template(conversation(PROMPTS[0]), return_dict=False)
    assert read_by(rollout) == [expected]
    assert tokenizer.eos_token_id not in expected


def test_smollm2_answers(tuner) -> None:
    """The real model ends its turn by itself, with what its own template begins with."""
    module = tuner(model="smollm2-135m", chat=True, max_completion_length=40)
    question = "What is the capital of France?"
    rollout = module.rollout([question], temperature=0.0)
    assert "Paris" in rollout.completions[0]
    assert rollout.ended.all()
    template = module.tokenizer.apply_chat_template
    messages = conversation(question)
    assert read_by(rollout) == [template(messages, add_generation_prompt=True, return_dict=False)]
