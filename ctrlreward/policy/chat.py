"""Chat templates: prompts as a conversation, and the token that ends an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from ctrlreward.models.control_tokens import control_tokens, mark, rendered_chat
from ctrlreward.samples import shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ctrlreward.policy.prompt_batches import Conversation, Prompt
    from ctrlreward.policy.rollouts import Generation
    from ctrlreward.samples import Samples

_ANSWER = "Answer"


def model_texts(
    tokenizer: PreTrainedTokenizerBase, options: Generation, prompts: Sequence[Prompt]
) -> list[str]:
    """Return the texts that the model reads for some prompts.

    In a chat a string is one user message, after the system message if any; a conversation
    may have its own system message. The template's start of an answer follows, and its control
    tokens have marks (`rendered_chat`).
    """
    if options.chat:
        return [_rendered(tokenizer, options, _messages(options, prompt)) for prompt in prompts]
    texts = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ValueError(
                f"prompts[{i}] = {shortened(prompt)} is a conversation. Set "
                "generation=Generation(chat=True), with an instruction-tuned model."
            )
        texts.append(prompt)
    return texts


def end_of_turn(tokenizer: PreTrainedTokenizerBase, options: Generation, model: str) -> list[int]:
    """Return the special token that ends an answer in the chat template, if it has one."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"generation.chat = True, but the tokenizer of model = {model!r} has no chat template. "
            "Use an instruction-tuned model, or leave generation.chat out."
        )
    messages = _messages(options, "Question")
    try:
        _rendered(tokenizer, options, messages)
        answered = [*messages, {"role": "assistant", "content": _ANSWER}]
        text = _rendered(tokenizer, options, answered, add_generation_prompt=False)
    except TemplateError as error:
        raise ValueError(
            f"the chat template of model = {model!r} refuses a conversation with "
            f"generation.system = {options.system!r}: {error}"
        ) from error
    if (options.system or "").strip() not in text:
        raise ValueError(
            f"the chat template of model = {model!r} drops generation.system = "
            f"{options.system!r}. Leave it out, and put it into the prompts."
        )
    after = text.rpartition(_ANSWER)[2].lstrip()
    return [i for i in control_tokens(tokenizer).values() if after.startswith(mark(i))]


def check_beginnings(prompts: Samples) -> None:
    """Raise if a text begins with its prompt, which is the user's message."""
    for prompt, beginning in zip(prompts.prompts or (), prompts.prefixes or (), strict=True):
        if beginning and prompt == beginning:
            raise ValueError(
                f"generation.chat = True, but {prompt!r} is both the user's message and the "
                "beginning of the text to score. Use Samples(texts=[''], prefixes=[''], "
                "prompts=[...]), whose texts are the answers alone."
            )


def _messages(options: Generation, prompt: Prompt) -> Conversation:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    if options.system is None or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": options.system}, *messages]


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    options: Generation,
    messages: Conversation,
    add_generation_prompt: bool = True,
) -> str:
    variables = options.chat_template_kwargs or {}
    return rendered_chat(tokenizer, messages, variables, add_generation_prompt)
