"""Prompts of a policy: read from a training batch, and as texts of a chat template."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from ctrlreward.arguments import kind_of
from ctrlreward.models.chats import prompt_messages
from ctrlreward.models.control_tokens import Pieces, chat_pieces
from ctrlreward.samples import (
    COLUMN_OF,
    JSON_KEYS,
    REWRITES_OR_CONTINUES,
    Samples,
    parse_conversation,
    shortened,
    table_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ctrlreward.policy.rollouts import Generation

_ANSWER = "Answer"


def read_batch(batch: object, answers: bool) -> Samples:
    """Return the prompts of a batch, as `Samples.as_prompts` does.

    A batch is `Samples`; a string or strings; a record or records; a mapping of columns, a pandas
    DataFrame or a `datasets.Dataset`. Records and columns have `prompt`, a string or a
    conversation; or `prefix` or `text`, which texts then begin with; or both. If completions are
    independent texts, `answers` (of a chat, or of an encoder-decoder), strings are prompts whose
    texts begin with "".
    """
    samples = batch if isinstance(batch, Samples) else _samples(batch, answers)
    if not samples.texts:
        raise ValueError("the batch is empty, must have prompts")
    if answers and samples.prefixes is None and samples.prompts is None:
        raise ValueError(
            "the samples have neither prefixes nor prompts, and a completion of this model does "
            f"not continue the text that it reads. {REWRITES_OR_CONTINUES}"
        )
    return samples.as_prompts()


def _samples(batch: object, answers: bool) -> Samples:
    table: Mapping[str, Any] | None = table_of(batch)
    if table is None:
        items: list[Any] = list(batch) if isinstance(batch, list | tuple) else [batch]
        if all(isinstance(item, str) for item in items):
            table = {"prompts" if answers else "texts": items}
        elif all(isinstance(item, Mapping) and item.keys() == items[0].keys() for item in items):
            table = {name: [record[name] for record in items] for name in items[0]}
        else:
            raise TypeError(
                f"the batch {shortened(batch)} is {kind_of(batch)}, must be strings, or dicts of "
                "the same keys, as DataLoader(prompts, batch_size=8) makes them"
            )
    columns = {COLUMN_OF[name]: column for name, column in table.items() if name in COLUMN_OF}
    if not {"texts", "prefixes", "prompts"} & columns.keys():
        names = ", ".join(table) or "none"
        raise ValueError(f"the batch has the columns {names}, must have prompt, prefix or text")
    if ignored := [name for name in table if name not in COLUMN_OF]:
        warnings.warn(  # once
            f"PolicyTuner ignores the columns {', '.join(ignored)} of the batches: rewards read "
            f"{', '.join(JSON_KEYS.values())}",
            stacklevel=2,
        )
    prompts: Any = columns.get("prompts")
    of_messages = isinstance(prompts, list) and prompts and isinstance(prompts[0], Mapping)
    role = prompts[0].get("role") if of_messages else None
    if isinstance(role, str) or any(isinstance(each, str | int) for each in columns.values()):
        columns = {name: [item] for name, item in columns.items()}  # a record
    elif isinstance(role, list | tuple):  # k messages of n prompts each, as collation makes them
        columns["prompts"] = [
            [{key: message[key][i] for key in message} for message in prompts]
            for i in range(len(role))
        ]
    if "texts" not in columns:
        empty = [""] * len(columns.get("prompts", ()))
        columns["texts"] = columns["prefixes"] = columns.get("prefixes", empty)
    return Samples(**columns)


# Chat templates


def model_texts(
    tokenizer: PreTrainedTokenizerBase, options: Generation, prompts: Sequence[str]
) -> list[Pieces]:
    """Return the texts that the model reads for some prompts of `Samples`, in pieces.

    In a chat a prompt is one user message, after the system message if any; a conversation may have
    its own system message. The template's start of an answer follows.
    """
    if options.chat:
        return [_rendered(tokenizer, options, prompt) for prompt in prompts]
    for i, prompt in enumerate(prompts):
        if parse_conversation(prompt):
            raise ValueError(
                f"prompts[{i}] = {shortened(prompt)} is a conversation. Set "
                "generation=Generation(chat=True), with an instruction-tuned model."
            )
    return [(prompt,) for prompt in prompts]


def end_of_turn(tokenizer: PreTrainedTokenizerBase, options: Generation, model: str) -> list[int]:
    """Return the special token that ends an answer in the chat template, if it has one."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"generation.chat = True, but the tokenizer of model = {model!r} has no chat template. "
            "Use an instruction-tuned model, or leave generation.chat out."
        )
    try:
        _rendered(tokenizer, options, "Question")
        pieces = _rendered(tokenizer, options, "Question", answer=_ANSWER)
    except TemplateError as error:
        raise ValueError(
            f"the chat template of model = {model!r} refuses a conversation with "
            f"generation.system = {options.system!r}: {error}"
        ) from error
    texts = [piece if isinstance(piece, str) else "" for piece in pieces]
    if (options.system or "").strip() not in "".join(texts):
        raise ValueError(
            f"the chat template of model = {model!r} drops generation.system = "
            f"{options.system!r}. Leave it out, and put it into the prompts."
        )
    answer = max((k for k, text in enumerate(texts) if _ANSWER in text), default=None)
    if answer is None:
        return []
    rest = texts[answer].rpartition(_ANSWER)[2], *pieces[answer + 1 :]
    after = [piece for piece in rest if isinstance(piece, int) or piece.strip()]
    return [piece for piece in after[:1] if isinstance(piece, int)]


def _rendered(
    tokenizer: PreTrainedTokenizerBase, options: Generation, prompt: str, answer: str | None = None
) -> Pieces:
    """Return a conversation by the chat template, up to the start of an answer, or with one."""
    messages = prompt_messages(prompt)
    if options.system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": options.system}, *messages]
    if messages[-1]["role"] == "assistant":
        raise ValueError(
            f"the prompt {shortened(prompt)} ends with an answer: end it with a user's message"
        )
    if answer is not None:
        messages = [*messages, {"role": "assistant", "content": answer}]
    variables = options.chat_template_kwargs or {}
    return chat_pieces(tokenizer, messages, variables, add_generation_prompt=answer is None)
