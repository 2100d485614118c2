"""Infilling: log-probabilities of candidate fillings at the blank of a pattern."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ctrlreward.engine.sharing import Request, Requests, shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import control_tokens, mark, rendered_chat
from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.models.tasks import Blank, Continuation, TokenScores
from ctrlreward.models.tokenization import start_token
from ctrlreward.weights.loading import load_config

log = logging.getLogger(__name__)

# Fill-in-the-middle tokens: prefix, suffix, middle.
_MIDDLE_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


class Infiller(Protocol):
    """Frozen model that scores fillings of blanks."""

    tokenizer: PreTrainedTokenizerBase

    def requests(self, blanks: Sequence[Blank]) -> Requests[list[list[TokenScores]]]:
        """Return the scores of each target of each blank, in the given order."""


def load_infiller(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> Infiller:
    """Load an infiller, shared by all calls with equal arguments: masked, or prompted."""
    if load_config(model).is_encoder_decoder:
        return shared_model(Seq2SeqInfiller, model, device, dtype, batch_tokens)
    return CausalInfiller(shared_model(CausalLM, model, device, dtype, batch_tokens))


class CausalInfiller:
    """Infiller over a decoder-only model.

    A blank at the end of its pattern is scored as a continuation. Elsewhere, the pattern is ordered
    with the model's fill-in-the-middle tokens if its vocabulary has them; otherwise the text after
    the blank comes first and the text before it is continued, as in the suffix-prefix-middle order
    of fill-in-the-middle training. `Blank.ends` is ignored, since no end token follows a filling in
    running text.

    In a prompt about a text, the filling is scored together with `Blank.closing`: "good for
    nothing" does not count as "good.". If the text follows the prompt and the tokenizer has a chat
    template, the text becomes the user's turn and the prompt begins the assistant's.
    """

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm
        self.tokenizer = lm.tokenizer
        self._infix = _infix_order(self.tokenizer) or _SUFFIX_FIRST
        self._prompt = _chat_order(self.tokenizer) or self._infix

    def requests(self, blanks: Sequence[Blank]) -> Requests[list[list[TokenScores]]]:
        """See `Infiller.requests`."""
        continuations = []
        for blank in blanks:
            closing = blank.closing or ""
            left, right = blank.left.strip(), blank.right[len(closing) :].strip()
            context = left
            if right:
                order = self._infix if blank.closing is None else self._prompt
                context = order.format(left=left, right=right)
            for target in blank.targets:
                # A space separates a filling from the text before it, unless a joined filling
                # brings none ("The dog" and "'s fine").
                space = " " if left and not (blank.joined and not target[:1].isspace()) else ""
                continuations.append(Continuation(context, space + target.strip() + closing))
        scores = iter((yield Request(self.lm, continuations)))
        return [[next(scores) for _ in blank.targets] for blank in blanks]


# Orders: text before a filling, as a format of the text before and after its blank.
_SUFFIX_FIRST = "{right}\n\n{left}"


def _infix_order(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the fill-in-the-middle format, or None if the vocabulary lacks its tokens."""
    control = control_tokens(tokenizer)
    for tokens in _MIDDLE_TOKENS:
        if all(token in control for token in tokens):
            prefix, suffix, middle = (mark(control[token]) for token in tokens)
            return f"{prefix}{{left}}{suffix} {{right}}{middle}"
    return None


def _chat_order(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the format of a chat turn, or None if the tokenizer has no usable chat template.

    A later turn is used: templates add a system message, the date and the like to the first one,
    and no score should depend on these.
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
    before, after = (text.replace("{", "{{").replace("}", "}}") for text in (before, after))
    return f"{before}{{right}}{after}{{left}}"
