"""Chats as plain texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrlreward.arguments import kind_of
from ctrlreward.samples import conversation_prompt, parse_conversation

# Parts of a message that are text, in OpenAI's Chat Completions and Responses.
_TEXT = ("text", "input_text", "output_text")


def plain_text(chat: str | Sequence[Mapping[str, Any]], role: str | None = None) -> str:
    """Return a text unchanged, or the texts of a chat's messages, of one role or all, by lines.

    Content is a text, a list of parts of which the text parts count, or None (a bare tool call).
    """
    if isinstance(chat, str):
        return chat
    contents = []
    try:
        for message in chat:
            if role in (None, message.get("role")):
                content = message.get("content") or ""
                if not isinstance(content, str):
                    content = "".join(part["text"] for part in content if part.get("type") in _TEXT)
                contents.append(content)
    except (AttributeError, KeyError, TypeError):
        raise TypeError(
            "a message must be a text, or a list of messages with role and content, got "
            f"{kind_of(chat)} of another form"
        ) from None
    return "\n".join(filter(None, contents))


def as_prompt(chat: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt of `Samples` for a text, or for a chat that a generator answers.

    A single user's message is its text; other chats keep their roles, for reward models.
    """
    text = plain_text(chat)
    messages = [] if isinstance(chat, str) else chat
    roles = [message.get("role") for message in messages]
    if roles in ([], ["user"]) or None in roles:
        return text
    return conversation_prompt(
        [{"role": message["role"], "content": plain_text([message])} for message in messages]
    )


def prompt_text(prompt: str) -> str:
    """Return a prompt of `Samples` as a text: the contents of a conversation by lines."""
    return plain_text(parse_conversation(prompt) or prompt)


def prompt_messages(prompt: str) -> list[dict[str, str]]:
    """Return a prompt of `Samples` as messages with plain texts: a text is one of the user."""
    messages = parse_conversation(prompt) or [{"role": "user", "content": prompt}]
    return [{**message, "content": plain_text([message])} for message in messages]
