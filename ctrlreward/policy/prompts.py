"""Prompts of a policy: read from a training batch, and as texts of a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from jinja2 import TemplateError

from ctrlreward.arguments import kind_of
from ctrlreward.models.chats import prompt_messages
from ctrlreward.models.control_tokens import Pieces, chat_pieces
from ctrlreward.samples import COLUMN_OF, Samples, shortened, table_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ctrlreward.policy.rollouts import Generation

# The messages of a conversation, each with role and content.
Conversation: TypeAlias = Sequence[Mapping[str, Any]]
Prompt: TypeAlias = str | Conversation

_ANSWER = "Answer"
_MUST_BE = (
    "must be strings, or dicts with a prompt, as DataLoader(prompts, batch_size=8) makes them of a "
    "list or a datasets.Dataset"
)


def read_batch(batch: object, answers: bool) -> tuple[Samples, Sequence[Prompt], tuple[str, ...]]:
    """Return the prompts of a batch as samples and as n inputs of the policy, and unknown columns.

    A batch is `Samples`; a string or strings; a record or records; a mapping of columns, a pandas
    DataFrame or a `datasets.Dataset`. Records and columns have `prompt`, a string or a
    conversation; or `prefix` or `text`, which texts then begin with; or both. Any may be columns of
    `Samples` in the singular or the plural. If completions are independent texts, `answers` (of a
    chat, or of an encoder-decoder), strings are prompts whose texts begin with "". The prompt of a
    conversation, in the samples, is the contents of its messages, joined by line breaks.
    """
    inputs: list[Prompt] | None = None
    ignored: tuple[str, ...] = ()
    if isinstance(batch, Samples):
        samples = batch
    else:
        table = _table(batch, "prompts" if answers else "texts")
        columns = {COLUMN_OF[name]: column for name, column in table.items() if name in COLUMN_OF}
        ignored = tuple(name for name in table if name not in COLUMN_OF)
        if not {"texts", "prefixes", "prompts"} & columns.keys():
            raise ValueError(
                f"the batch has the columns {', '.join(table) or 'none'}. Call one 'prompt', or "
                "'prefix' if texts begin with it."
            )
        if "prompts" in columns:
            inputs = _prompts(columns["prompts"])
            columns["prompts"] = [_as_text(i, prompt) for i, prompt in enumerate(inputs)]
        if "texts" not in columns:
            empty = [""] * len(columns.get("prompts", ()))
            columns["texts"] = columns["prefixes"] = columns.get("prefixes", empty)
        samples = Samples(**columns)
    if not samples.texts:
        raise ValueError(f"the batch is empty, {_MUST_BE}")
    return samples, inputs or samples.as_prompts().prompts or (), ignored


def _table(batch: object, strings: str) -> dict[str, Any]:
    """Return the columns of a batch by name; strings become a column of that name."""
    table = table_of(batch)
    if table is not None:
        if any(_is_item(column) for name, column in table.items() if name in COLUMN_OF):
            return {name: [item] for name, item in table.items()}  # a record
        return dict(table)
    items: Sequence[Any] = batch if isinstance(batch, list | tuple) else [batch]
    if all(isinstance(item, str) for item in items):
        return {strings: list(items)}
    if all(isinstance(item, Mapping) for item in items):
        names = list(items[0])
        for i, record in enumerate(items):
            if record.keys() != items[0].keys():
                raise ValueError(
                    f"record {i} of the batch has the keys {', '.join(record)}, but record 0 has "
                    f"{', '.join(names)}. All records must have the same keys."
                )
        return {name: [record[name] for record in items] for name in names}
    raise TypeError(f"the batch {shortened(batch)} is {kind_of(batch)}, {_MUST_BE}")


def _is_item(column: object) -> bool:
    """Return True for the value of one record, False for a column."""
    return isinstance(column, str | int) or _is_one(column)


def _is_conversation(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _is_one(messages: Any) -> bool:
    """Return True for one conversation, False for k messages of n each, as collation makes them."""
    return _is_conversation(messages) and isinstance(messages[0].get("role"), str)


def _prompts(column: Iterable[Any]) -> list[Prompt]:
    """Return the prompts of a column, as n conversations."""
    items = list(column)
    if not _is_conversation(items):
        return items
    if _is_one(items):
        return [items]
    rows = zip(*(zip(*message.values(), strict=True) for message in items), strict=True)
    keys = [list(message) for message in items]
    return [[dict(zip(k, v, strict=True)) for k, v in zip(keys, row, strict=True)] for row in rows]


def _as_text(i: int, prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    if not _is_conversation(prompt):
        raise TypeError(
            f"prompts[{i}] must be a string, or messages with role and content, got "
            f"{shortened(prompt)}, {kind_of(prompt)}"
        )
    messages: Any = prompt
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise TypeError(
                f"a message of prompts[{i}] must have a role and a content, both strings, got "
                f"{shortened(message)}"
            )
    if messages[-1]["role"] == "assistant":
        raise ValueError(
            f"prompts[{i}] ends with an answer, {shortened(messages[-1]['content'])}: end it with "
            "a user's message"
        )
    return "\n".join(message["content"] for message in messages)


# Chat templates


def model_texts(
    tokenizer: PreTrainedTokenizerBase, options: Generation, prompts: Sequence[Prompt]
) -> list[Pieces]:
    """Return the texts that the model reads for some prompts, in pieces.

    In a chat a string is one user message, after the system message if any; a conversation, also
    one of `Samples`, may have its own system message. The template's start of an answer follows.
    """
    if options.chat:
        return [_rendered(tokenizer, options, _messages(options, prompt)) for prompt in prompts]
    texts: list[Pieces] = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise ValueError(
                f"prompts[{i}] = {shortened(prompt)} is a conversation. Set "
                "generation=Generation(chat=True), with an instruction-tuned model."
            )
        texts.append((prompt,))
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
        pieces = _rendered(tokenizer, options, answered, add_generation_prompt=False)
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
    messages = prompt_messages(prompt) if isinstance(prompt, str) else [*prompt]
    if options.system is None or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": options.system}, *messages]


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    options: Generation,
    messages: Conversation,
    add_generation_prompt: bool = True,
) -> Pieces:
    variables = options.chat_template_kwargs or {}
    return chat_pieces(tokenizer, messages, variables, add_generation_prompt)
