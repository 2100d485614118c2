"""Orders in which a decoder-only model reads the text around a blank, before the filling."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ctrlreward.models.control_tokens import control_tokens, mark, rendered_chat
from ctrlreward.models.tasks import TEXT_SLOT, Blank, Continuation, Patterns
from ctrlreward.models.tokenization import Pieces, glued, start_token

log = logging.getLogger(__name__)

# Fill-in-the-middle tokens: prefix, suffix, middle.
_MIDDLE_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


class Order(NamedTuple):
    """Strings around the text before a blank and the text after it, one of which comes first."""

    before: str
    between: str
    after: str
    suffix_first: bool

    def pieces(self, left: Pieces, right: Pieces) -> Pieces:
        """Return the context of a filling."""
        first, second = (right, left) if self.suffix_first else (left, right)
        return (self.before, *first, self.between, *second, self.after)


# As in the suffix-prefix-middle order of fill-in-the-middle training.
_SUFFIX_FIRST = Order("", "\n\n", "", suffix_first=True)


class BlankOrders:
    """Continuations that fill blanks.

    A blank at the end of its pattern is continued. Elsewhere the pattern is ordered with the
    model's fill-in-the-middle tokens, or else the text after the blank comes first. In a prompt
    about a text, `Blank.closing` is scored with the filling, and if the text follows the prompt, a
    chat template makes it the user's turn, which the prompt answers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._infix = _infix_order(tokenizer) or _SUFFIX_FIRST
        self._prompt = _chat_order(tokenizer) or self._infix
        self._prompts = lru_cache(maxsize=16)(self._about)

    def of(self, task: Patterns) -> tuple[list[Continuation], tuple[int, ...] | None]:
        """Return continuations, and the place of each target among theirs, None if in order."""
        if not task.text:
            return [self._continuation(blank) for blank in task.blanks], None
        found = []
        prompts, places = self._prompts(task.blanks)
        for before, strips, targets in prompts:
            text = task.text.lstrip() if strips[0] else task.text
            text = text.rstrip() if strips[1] else text
            found.append(Continuation((before, text) if before else (text,), targets, fixed=True))
        return found, places

    def _continuation(self, blank: Blank) -> Continuation:
        """Return the continuation of a blank without a text slot."""
        closing = blank.closing or ""
        order = self._infix if blank.closing is None else self._prompt
        right = blank.right
        if closing:  # which the first piece starts with
            right = (right[0][len(closing) :], *right[1:])
        left, right = _stripped(blank.left), _stripped(right)
        context, given = glued(order.pieces(left, right) if right else left)
        fillings = (_filling(blank, target, bool(left)) + closing for target in blank.targets)
        return Continuation(tuple(context), tuple((given, filling) for filling in fillings))

    def _about(
        self, blanks: tuple[Blank, ...]
    ) -> tuple[
        list[tuple[str, tuple[bool, bool], tuple[tuple[str, str], ...]]], tuple[int, ...] | None
    ]:
        """Return the prompts about a text by what stands before it, and their targets' places."""
        groups: dict[tuple[str, tuple[bool, bool]], list[tuple[int, tuple[str, str]]]] = {}
        count = 0
        for blank in blanks:
            closing = blank.closing or ""
            left = "".join(blank.left).strip()
            right = "".join(blank.right)[len(closing) :].strip()
            order = self._infix if blank.closing is None else self._prompt
            context = "".join(order.pieces((left,), (right,))) if right else left
            before, _, after = context.partition(TEXT_SLOT)
            part = left if TEXT_SLOT in left else right
            strips = part.startswith(TEXT_SLOT), part.endswith(TEXT_SLOT)
            group = groups.setdefault((before, strips), [])
            for target in blank.targets:
                group.append((count, (after, _filling(blank, target, bool(left)) + closing)))
                count += 1
        prompts = [(*key, tuple(target for _, target in each)) for key, each in groups.items()]
        found = [place for each in groups.values() for place, _ in each]
        places = tuple(sorted(range(count), key=found.__getitem__))
        return prompts, None if places == tuple(range(count)) else places


def _filling(blank: Blank, target: str, follows: bool) -> str:
    """Return a target with the space before it; a joined one may bring none (`'s fine`)."""
    space = " " if follows and not (blank.joined and not target[:1].isspace()) else ""
    return space + target.strip()


def _stripped(pieces: Pieces) -> Pieces:
    """Return pieces without white space around the whole."""
    kept = list(pieces)
    while kept and not kept[0].strip():
        del kept[0]
    while kept and not kept[-1].strip():
        del kept[-1]
    if kept:
        kept[0] = kept[0].lstrip()
        kept[-1] = kept[-1].rstrip()
    return tuple(kept)


def _infix_order(tokenizer: PreTrainedTokenizerBase) -> Order | None:
    """Return the fill-in-the-middle order, or None if the vocabulary lacks its tokens."""
    control = control_tokens(tokenizer)
    for tokens in _MIDDLE_TOKENS:
        if all(token in control for token in tokens):
            prefix, suffix, middle = (mark(control[token]) for token in tokens)
            return Order(prefix, f"{suffix} ", middle, suffix_first=False)
    return None


def _chat_order(tokenizer: PreTrainedTokenizerBase) -> Order | None:
    """Return the order of a chat turn, or None if the tokenizer has no usable chat template.

    A later turn is used, since templates add a system message or the date to the first one.
    """
    if not tokenizer.chat_template:
        return None
    slot = "{right}"
    earlier = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    later = [*earlier, {"role": "user", "content": slot}]
    try:
        begun = rendered_chat(tokenizer, earlier, {}, add_generation_prompt=False)
        whole = rendered_chat(tokenizer, later, {}, add_generation_prompt=True)
    except (TemplateError, ValueError) as error:
        begun, whole = "", f"({error})"
    start = "".join(map(mark, start_token(tokenizer)))
    # The start token is added to every text anyway.
    turn = whole.removeprefix(begun).removeprefix(start)
    before, separator, after = turn.partition(slot)
    if not separator or slot in after or not begun or not whole.startswith(begun):
        log.warning(
            f"the chat template of {tokenizer.name_or_path} does not render a user's text as a "
            f"separate turn: {whole}"
        )
        return None
    return Order(before, after, "", suffix_first=True)
