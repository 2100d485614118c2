"""Control tokens: texts never contain them, and ours are written by marks.

`text_reader` spells `</s>` in a text with ordinary tokens. A control token of ours is its `mark`,
which begins with a number that is drawn in each process.

A control token is an added token that the tokenizer declares special, or that looks like a turn or
fill-in-the-middle token (`<|user|>`, `<fim_prefix>`). Other added tokens, such as `<think>`, are
text, and so is a special token of one character.
"""

from __future__ import annotations

import copy
import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerBase

_SHAPE = re.compile(r"<[|｜].+[|｜]>|<fim[-_]\w+>")

# Private-use characters around a mark.
_OPEN, _CLOSE = "\ue000", "\ue001"
_DRAWN = secrets.token_hex(8)

# A mark, and a control token of a message while the template is applied.
_MARK = re.compile(f"{_OPEN}{_DRAWN}:\\d+{_CLOSE}")
_HIDDEN = re.compile(f"{_OPEN}{_DRAWN}=(\\d+){_CLOSE}")

# Texts around a control token, in which a tokenizer may read it in different ways.
_AROUND = ("{}", "a{}b", "a {} b")


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the control tokens of a tokenizer and their ids."""
    named = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    added = {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special or _SHAPE.fullmatch(token.content)
    }
    return {**named, **added}


def mark(token_id: int) -> str:
    """Return the string that a `text_reader` reads as a control token, as an id for `real_ids`."""
    return f"{_OPEN}{_DRAWN}:{token_id}{_CLOSE}"


def text_reader(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Any:
    """Return a tokenizer for these texts that reads marks as control tokens, and the rest as text.

    It is the given tokenizer, unless a text has a character that a control token begins with.
    """
    readers = _CACHE.get(tokenizer) or _build(tokenizer)
    suspects, marked = [], False
    for text in texts:
        marked = marked or _OPEN in text
        # A normalizer turns other characters ("＜") into ASCII.
        characters = readers.first if text.isascii() else readers.first_or_similar
        if any(character in text for character in characters):
            suspects.append(text)
    if marked and not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer of {tokenizer.name_or_path} is not a fast one, which a control token "
            "between texts needs. Add a tokenizer.json to the model."
        )
    for literal in readers.unspelled:
        if any(literal in text for text in suspects):
            raise ValueError(
                f"{literal!r} is a control token of {tokenizer.name_or_path}, whose tokenizer "
                "cannot read it as text. Remove it from the text."
            )
    return readers.reader if suspects or marked else tokenizer


def real_ids(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return ids of a `text_reader`, with control tokens in place of their marks."""
    of_marks = (_CACHE.get(tokenizer) or _build(tokenizer)).of_marks
    return [of_marks.get(token, token) for token in ids]


def marked(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return a text of ours with marks for the control tokens that are written in it."""
    control, literals = _patterns(tokenizer)
    return literals.sub(lambda found: mark(control[found[0]]), text)


def rendered_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    variables: Mapping[str, Any],
    add_generation_prompt: bool,
) -> str:
    """Return a conversation by a chat template, with marks for the template's tokens alone."""
    control, literals = _patterns(tokenizer)

    def hidden(found: re.Match[str]) -> str:
        return f"{_OPEN}{_DRAWN}={control[found[0]]}{_CLOSE}"

    text = str(
        tokenizer.apply_chat_template(
            [{**turn, "content": literals.sub(hidden, turn["content"])} for turn in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    )
    text = literals.sub(lambda found: mark(control[found[0]]), text)
    if _HIDDEN.search(text):
        names = {token_id: token for token, token_id in control.items()}
        text = _HIDDEN.sub(lambda found: names[int(found[1])], text)
    rest = _MARK.sub("", text)
    given = "".join(turn["content"] for turn in messages)
    if any(part in rest and part not in given for part in (_OPEN, _DRAWN, _CLOSE)):
        found = sorted({repr(match[0]) for match in literals.finditer(given)})
        raise ValueError(
            f"the chat template of {tokenizer.name_or_path} changes a message that has a control "
            f"token. Remove {' and '.join(found)} from the message."
        )
    return text


class _Readers(NamedTuple):
    """A copy of a tokenizer that shares its vocabulary, and what decides between them."""

    first: str
    first_or_similar: str
    reader: PreTrainedTokenizerBase
    of_marks: Mapping[int, int]
    unspelled: frozenset[str]


_CACHE: WeakKeyDictionary[PreTrainedTokenizerBase, _Readers] = WeakKeyDictionary()
_PATTERNS: WeakKeyDictionary[
    PreTrainedTokenizerBase, tuple[tuple[str, ...], Mapping[str, int], re.Pattern[str]]
] = WeakKeyDictionary()


def _patterns(tokenizer: PreTrainedTokenizerBase) -> tuple[Mapping[str, int], re.Pattern[str]]:
    """Return the control tokens, and a pattern of them, which takes longer than a short chat."""
    special = tuple(tokenizer.all_special_tokens)
    known = _PATTERNS.get(tokenizer)
    if known is None or known[0] != special:  # a padding token may be set later
        control = control_tokens(tokenizer)
        longest = sorted((token for token in control if len(token) > 1), key=len, reverse=True)
        literals = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        known = _PATTERNS[tokenizer] = (special, control, literals)
    return known[1], known[2]


def _build(tokenizer: PreTrainedTokenizerBase) -> _Readers:
    control = control_tokens(tokenizer)
    literals = {token: i for token, i in control.items() if len(token) > 1}
    first = "".join(sorted({token[0] for token in literals}))
    similar = "".join({first, *map(_similar, first)})
    reader = _copy(tokenizer, control, None)
    unspelled = _unspelled(reader, literals)
    if unspelled and tokenizer.is_fast:
        reader = _copy(tokenizer, control, literals)
        unspelled = _unspelled(reader, literals)
    of_marks: dict[int, int] = {}
    if tokenizer.is_fast:
        backend: Tokenizer = reader._tokenizer
        for token_id in control.values():
            of_marks[cast(int, backend.token_to_id(mark(token_id)))] = token_id
    readers = _Readers(first, similar, reader, of_marks, unspelled)
    _CACHE[tokenizer] = readers
    return readers


def _copy(
    tokenizer: PreTrainedTokenizerBase, control: Mapping[str, int], broken: Iterable[str] | None
) -> Any:
    """Copy a tokenizer to read marks and no control token, with `broken` strings in two pieces."""
    reader: Any = copy.copy(tokenizer)
    reader.split_special_tokens = True
    if not tokenizer.is_fast:
        return reader
    published: Tokenizer = tokenizer.backend_tokenizer
    backend = Tokenizer(published.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(published, part) is not None:
            setattr(backend, part, getattr(published, part))
    if broken is not None:
        # The first character goes to the piece before, so that no space is added in between.
        split = Split(Regex(_after_first(broken)), "merged_with_previous")
        own = backend.pre_tokenizer
        backend.pre_tokenizer = split if own is None else PreTokenizers([own, split])
    added = dict(sorted(published.get_added_tokens_decoder().items()))
    backend.add_tokens(
        [_as(token, token.content, token.content in control) for token in added.values()]
    )
    backend.add_tokens(
        [_as(added.get(i, AddedToken(token)), mark(i), False) for token, i in control.items()]
    )
    backend.encode_special_tokens = True
    reader._tokenizer = backend
    return reader


def _as(token: AddedToken, content: str, special: bool) -> AddedToken:
    """Return an added token with another content, which is special or not."""
    return AddedToken(
        content,
        single_word=token.single_word and special,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and special,
        special=special,
    )


def _unspelled(reader: Any, literals: Mapping[str, int]) -> frozenset[str]:
    """Return the control tokens that a tokenizer reads as such in some text."""
    if not literals:
        return frozenset()
    # An ordinary character may be the unknown token as well.
    control = {*literals.values()} - {reader.unk_token_id}
    texts = [form.format(token) for token in literals for form in _AROUND]
    rows = reader(texts, add_special_tokens=False, verbose=False).input_ids
    wrong = [k for k, ids in enumerate(rows) if not control.isdisjoint(ids)]
    tokens = [*literals]
    return frozenset(tokens[k // len(_AROUND)] for k in wrong)


def _after_first(literals: Iterable[str]) -> str:
    """Return a pattern, for tokenizers, of the first character of some strings."""
    rests: dict[str, list[str]] = {}
    for text in literals:
        rests.setdefault(text[0], []).append(text[1:])
    return "|".join(
        f"{re.escape(first)}(?={'|'.join(map(re.escape, rest))})" for first, rest in rests.items()
    )


@lru_cache
def _similar(character: str) -> str:
    """Return the characters that compatibility decomposition turns into a given one and marks."""
    similar = (chr(i) for i in range(0x80, 0x10000) if not 0xD800 <= i < 0xE000)
    return "".join(c for c in similar if character in unicodedata.normalize("NFKD", c))
