"""Texts as a reward model was trained to read them: by a chat template, plainly, by a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter
from typing import Literal, NamedTuple, TypeAlias

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ctrlreward.failures import UnreadableText
from ctrlreward.models.chats import prompt_messages, prompt_text
from ctrlreward.models.control_tokens import Pieces, chat_pieces, written_pieces
from ctrlreward.models.tokenization import Ids, read_chunks, special_ids, warn_truncated

Side: TypeAlias = Literal["left", "right"]

CHAT, PLAIN = "chat", "plain"
_DROPPED = {"left": "their first tokens", "right": "their last tokens"}


class Answer(NamedTuple):
    """A completion of a prompt, a text or a conversation of `Samples`; None for a text alone."""

    prompt: str | None
    completion: str


def check_template(template: str) -> None:
    """Raise unless a template is "chat", "plain", or has {completion} and at most {prompt} more."""
    if template in (CHAT, PLAIN):
        return
    try:
        slots = {*slots_of(template)}
    except ValueError:  # a single brace
        slots = set()
    if "completion" not in slots or slots - {"prompt", "completion"}:
        raise ValueError(
            "template must be 'chat', 'plain' or a text with {completion} and perhaps {prompt}, "
            f"got {template!r}"
        )


def slots_of(template: str) -> list[str]:
    """Return the names in braces of a template."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def needs_prompts(template: str | None) -> bool:
    """Return whether a template can't do without prompts."""
    return template == CHAT or (template not in (None, PLAIN) and "prompt" in slots_of(template))


def _rendered(
    tokenizer: PreTrainedTokenizerBase, answers: Sequence[Answer], template: str, model: str
) -> list[Pieces]:
    if template == CHAT:
        return _chats(tokenizer, answers, model)
    if template == PLAIN:
        # As TRL's `RewardTrainer` makes them of strings.
        pattern, end = "{prompt}{completion}", _end(tokenizer)
    else:
        pattern, end = template, ()
    # Slots of a part follow its text.
    parts = [
        (written_pieces(tokenizer, text), slot) for text, slot, _, _ in Formatter().parse(pattern)
    ]
    rendered = []
    for prompt, completion in answers:
        cells = {"prompt": prompt_text(prompt or ""), "completion": completion, None: ""}
        rendered.append((*(p for own, slot in parts for p in (*own, cells[slot])), *end))
    return rendered


def encode(
    tokenizer: PreTrainedTokenizerBase,
    answers: Sequence[Answer],
    template: str | None,
    side: Side | None,
    limit: int,
    model: str,
) -> list[Ids]:
    """Return the token ids of answers as a model reads them, of at most `limit` tokens each.

    Longer texts are cut at a side, None for the tokenizer's own. A template of None is the chat
    template, if there are one and prompts, or else "plain".
    """
    if not answers:
        return []
    if template is None:
        chat = tokenizer.chat_template is not None
        template = CHAT if chat and all(each.prompt is not None for each in answers) else PLAIN
    rendered = _rendered(tokenizer, answers, template, model)
    rows = [reading.ids for reading in read_chunks(tokenizer, rendered)]
    # A chat template writes the special tokens itself.
    before, after = ((), ()) if template == CHAT else special_ids(tokenizer)
    most = limit - len(before) - len(after)
    cut_at: str = side or tokenizer.truncation_side
    lengths = [len(row) + limit - most for row in rows]
    warn_truncated("texts", lengths, limit, _DROPPED[cut_at])
    kept = [row[max(0, len(row) - most) :] if cut_at == "left" else row[:most] for row in rows]
    return [(*before, *row, *after) for row in kept]


def _chats(
    tokenizer: PreTrainedTokenizerBase, answers: Sequence[Answer], model: str
) -> list[Pieces]:
    if tokenizer.chat_template is None:
        raise ValueError(f"template must not be 'chat' for model = {model!r}, which has none")
    chats = []
    for prompt, completion in answers:
        turns = prompt_messages(prompt or "")
        if turns[-1]["role"] == "assistant":  # a beginning of the answer, which was continued
            completion = turns.pop()["content"] + completion
        turns.append({"role": "assistant", "content": completion})
        try:
            chats.append(chat_pieces(tokenizer, turns, {}, add_generation_prompt=False))
        except TemplateError as error:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise UnreadableText(
                f"the chat template of model = {model!r} refuses a conversation of {roles}: {error}"
            ) from error
    return chats


def _end(tokenizer: PreTrainedTokenizerBase) -> Pieces:
    """Return the end token; nothing without one, or if the tokenizer adds special tokens."""
    ids = tokenizer("a", verbose=False).input_ids
    if tokenizer.eos_token_id is None or ids[-1] in tokenizer.all_special_ids:
        return ()
    return (tokenizer.eos_token_id,)
