"""Control tokens: a text never contains one, and ours are ids among the pieces of a string.

A tokenizer reads a string in pieces `(im_start, "user", im_end)`: ids are control tokens, and
whatever is written in the strings is text, also `"</s>"`.

A control token is an added token that the tokenizer declares special, or that looks like a turn or
fill-in-the-middle token (`<|user|>`, `<fim_prefix>`). Other added tokens, such as `<think>`, are
text, and so is a special token of one character.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerBase

from ctrlreward.failures import UnreadableText

Piece: TypeAlias = str | int
Pieces: TypeAlias = tuple[Piece, ...]
"""A string, cut anywhere, with control tokens as ids."""

_SHAPE = re.compile(r"<[|｜].+[|｜]>|<fim[-_]\w+>")

# Texts around a control token, in which a tokenizer may read it in different ways.
_AROUND = ("{}", "a{}b", "a {} b")

_PRIVATE = range(0xE000, 0xF900)  # characters that no template writes


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the control tokens of a tokenizer and their ids."""
    named = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    added = {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special or _SHAPE.fullmatch(token.content)
    }
    return {**named, **added}


class Control(NamedTuple):
    """Control tokens of a tokenizer."""

    ids: Mapping[str, int]
    names: Mapping[int, str]
    literal: frozenset[int]  # longer than a character, without the unknown one: no text has them
    pattern: re.Pattern[str]  # of the tokens longer than a character


_CONTROL: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[tuple[str, ...], Control]]
_CONTROL = WeakKeyDictionary()


def control_of(tokenizer: PreTrainedTokenizerBase) -> Control:
    """Return the control tokens of a tokenizer, found once for the same special tokens."""
    special = tuple(tokenizer.all_special_tokens)
    known = _CONTROL.get(tokenizer)
    if known is None or known[0] != special:  # a padding token may be set later
        ids = control_tokens(tokenizer)
        longest = sorted((token for token in ids if len(token) > 1), key=len, reverse=True)
        # An ordinary character may be the unknown token; GPT-2's is its end.
        unknown = None if tokenizer.unk_token == tokenizer.eos_token else tokenizer.unk_token_id
        control = Control(
            ids,
            {token_id: token for token, token_id in ids.items()},
            frozenset(ids[token] for token in longest) - {unknown},
            re.compile("|".join(map(re.escape, longest)) or "(?!)"),
        )
        known = _CONTROL[tokenizer] = (special, control)
    return known[1]


def written_pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> Pieces:
    """Return a text of ours in pieces, with an id for each control token written in it."""
    control = control_of(tokenizer)
    pieces: list[Piece] = []
    start = 0
    for found in control.pattern.finditer(text):
        pieces += [text[start : found.start()], control.ids[found[0]]]
        start = found.end()
    return tuple(piece for piece in (*pieces, text[start:]) if piece != "")


def chat_pieces(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    variables: Mapping[str, Any],
    add_generation_prompt: bool,
) -> Pieces:
    """Return a conversation by a chat template; only the control tokens of the template are ids.

    An `UnreadableText` if the template changes a message in which a control token is written.
    """
    control = control_of(tokenizer)
    template: Any = tokenizer.apply_chat_template
    options = {"tokenize": False, "add_generation_prompt": add_generation_prompt, **variables}
    render = partial(template, **options)
    text = str(render([*messages]))
    contents = "".join(turn["content"] for turn in messages)
    written = sorted({found[0] for found in control.pattern.finditer(contents)})
    if not written:
        return written_pieces(tokenizer, text)
    # What looks like a control token in a message is hidden from the search for the template's,
    # by a character that is in no message.
    quote = next(character for character in map(chr, _PRIVATE) if character not in contents)
    turns = []
    for turn in messages:
        content = turn["content"]
        for token in sorted(written, key=len, reverse=True):
            content = content.replace(token, f"{quote}{control.ids[token]}{quote}")
        turns.append({**turn, "content": content})
    pieces: list[Piece] = []
    for piece in written_pieces(tokenizer, str(render(turns))):
        if isinstance(piece, str):
            for token in written:
                piece = piece.replace(f"{quote}{control.ids[token]}{quote}", token)
        pieces.append(piece)
    if "".join(p if isinstance(p, str) else control.names[p] for p in pieces) != text:
        raise UnreadableText(
            f"a message must not have {' and '.join(map(repr, written))}, as the chat template of "
            f"{tokenizer.name_or_path} changes it"
        )
    return tuple(pieces)


class _Reader(NamedTuple):
    """A copy of a tokenizer that reads no control token, and what decides between both."""

    first: str  # characters that control tokens begin with
    spelling: PreTrainedTokenizerBase
    unspelled: frozenset[str]  # control tokens that the copy can't read as text


_READERS: WeakKeyDictionary[PreTrainedTokenizerBase, _Reader] = WeakKeyDictionary()


def text_reader(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Any:
    """Return a tokenizer for these texts, which reads what is written in them as text.

    It is the given one, unless a text has a character that a control token begins with.
    """
    reader = _READERS.get(tokenizer) or _build(tokenizer)
    normalizer = tokenizer.backend_tokenizer.normalizer
    suspects = []
    for text in texts:
        # A normalizer turns other characters ("＜") into ASCII.
        plain = text if text.isascii() or normalizer is None else normalizer.normalize_str(text)
        if any(character in plain for character in reader.first):
            suspects.append(text)
    for token in reader.unspelled:
        if any(token in text for text in suspects):
            raise UnreadableText(
                f"the tokenizer of {tokenizer.name_or_path} can't read {token!r}, a control token, "
                "as text"
            )
    return reader.spelling if suspects else tokenizer


def _build(tokenizer: PreTrainedTokenizerBase) -> _Reader:
    control = control_of(tokenizer)
    literals = [token for token in control.ids if len(token) > 1]
    spelling = _copy(tokenizer, control, None)
    unspelled = _unspelled(spelling, control, literals)
    if unspelled:
        spelling = _copy(tokenizer, control, literals)
        unspelled = _unspelled(spelling, control, literals)
    first = "".join(sorted({token[0] for token in literals}))
    reader = _READERS[tokenizer] = _Reader(first, spelling, unspelled)
    return reader


def _copy(
    tokenizer: PreTrainedTokenizerBase, control: Control, broken: Iterable[str] | None
) -> Any:
    """Copy a tokenizer to read control tokens as text, with `broken` strings in two pieces."""
    spelling: Any = copy.copy(tokenizer)
    spelling.split_special_tokens = True
    published: Tokenizer = tokenizer.backend_tokenizer
    backend = Tokenizer(published.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(published, part) is not None:
            setattr(backend, part, getattr(published, part))
    if broken is not None:
        # The first character goes to the piece before, so that no space is added in between.
        firsts = "|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in broken)
        split = Split(Regex(firsts), "merged_with_previous")
        own = backend.pre_tokenizer
        backend.pre_tokenizer = split if own is None else PreTokenizers([own, split])
    for _, token in sorted(published.get_added_tokens_decoder().items()):
        # Special tokens are not looked for in a text.
        is_control = token.content in control.ids
        read = AddedToken(
            token.content,
            single_word=token.single_word and is_control,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and is_control,
            special=is_control,
        )
        backend.add_tokens([read])
    backend.encode_special_tokens = True
    spelling._tokenizer = backend
    return spelling


def _unspelled(spelling: Any, control: Control, literals: Sequence[str]) -> frozenset[str]:
    if not literals:
        return frozenset()
    texts = [form.format(token) for token in literals for form in _AROUND]
    ids = {control.ids[token] for token in literals} - {spelling.unk_token_id}
    rows = spelling(texts, add_special_tokens=False, verbose=False).input_ids
    wrong = [k for k, row in enumerate(rows) if not ids.isdisjoint(row)]
    return frozenset(literals[k // len(_AROUND)] for k in wrong)
