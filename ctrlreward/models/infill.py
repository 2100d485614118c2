"""Infilling: how likely given fillings are at the blank of a pattern."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ctrlreward.engine.requests import Request, Requests
from ctrlreward.engine.sharing import shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.models.tasks import Blank, Continuation, TokenScores
from ctrlreward.models.tokenization import start_token
from ctrlreward.weights.loading import load_config

log = logging.getLogger(__name__)

# Tokens before, between and behind suffix and prefix in fill-in-the-middle training.
_MIDDLE_TOKENS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)


class Infiller(Protocol):
    """A frozen model that fills blanks."""

    tokenizer: PreTrainedTokenizerBase

    def requests(self, blanks: Sequence[Blank]) -> Requests[list[list[TokenScores]]]:
        """For each blank, the scores of each of its targets, in the given order."""


def load_infiller(
    model: str,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int | None = None,
) -> Infiller:
    """An `Infiller` over any pretrained model that can be one, which equal calls share.

    Encoder-decoders fill the mask that they were pretrained with; decoder-only models continue.
    """
    if load_config(model).is_encoder_decoder:
        return shared_model(Seq2SeqInfiller, model, device, dtype, batch_tokens)
    return CausalInfiller(shared_model(CausalLM, model, device, dtype, batch_tokens))


class CausalInfiller:
    """Fills blanks with a decoder-only model.

    A blank at the end of its pattern is continued. Elsewhere the model's fill-in-the-middle
    tokens are used where its vocabulary has them; else what follows the blank is put first, and
    what precedes it is continued: the suffix-prefix-middle order of fill-in-the-middle training,
    in plain words. `Blank.ends` has no meaning here, since no end token follows a filling in
    running text.

    Of a prompt, a remark on a text, the filling is scored together with what ends the remark:
    "good for nothing" is no way to say "good.". Where the text follows the remark and the model
    knows turns of a conversation, the text is the user's turn and the remark begins the answer.

    What a model was trained on is not looked at, only what its tokenizer has.
    """

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm
        self.tokenizer = lm.tokenizer
        self._infix = _infix_order(self.tokenizer) or _suffix_first
        self._remark = _answer_order(self.tokenizer) or self._infix

    def requests(self, blanks: Sequence[Blank]) -> Requests[list[list[TokenScores]]]:
        """See `Infiller.requests`."""
        scores = iter((yield Request(self.lm, [c for blank in blanks for c in self._pose(blank)])))
        return [[next(scores) for _ in blank.targets] for blank in blanks]

    def _pose(self, blank: Blank) -> list[Continuation]:
        """The blank's targets, each behind one and the same context."""
        closing = blank.closing or ""
        left, right = blank.left.strip(), blank.right[len(closing) :].strip()
        context = left
        if right:
            put = self._infix if blank.closing is None else self._remark
            context = put(left, right)
        # A filling begins its text, or a space parts it from what precedes it, unless it is
        # the very text that goes on there ("The dog" and "'s fine").
        spaces = [
            " " if left and not (blank.joined and not target[:1].isspace()) else ""
            for target in blank.targets
        ]
        return [
            Continuation(context, space + target.strip() + closing)
            for space, target in zip(spaces, blank.targets, strict=True)
        ]


# From what precedes and what follows a blank to the text that the filling continues.
_Order = Callable[[str, str], str]


def _suffix_first(left: str, right: str) -> str:
    return f"{right}\n\n{left}"


def _infix_order(tokenizer: PreTrainedTokenizerBase) -> _Order | None:
    """The order of fill-in-the-middle training, where the model has its tokens."""
    vocabulary = tokenizer.get_vocab()
    for prefix, suffix, middle in _MIDDLE_TOKENS:
        if prefix in vocabulary and suffix in vocabulary and middle in vocabulary:
            return lambda left, right: f"{prefix}{left}{suffix} {right}{middle}"
    return None


def _answer_order(tokenizer: PreTrainedTokenizerBase) -> _Order | None:
    """Turns of a conversation, where the tokenizer has a template of them.

    The turn is a later one: to the first, templates add a system message, the day and the like,
    on which no score should depend.
    """
    if not tokenizer.chat_template:
        return None
    slot = "{right}"
    earlier = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    later = [*earlier, {"role": "user", "content": slot}]
    try:
        begun = str(tokenizer.apply_chat_template(earlier, tokenize=False))
        whole = str(
            tokenizer.apply_chat_template(later, tokenize=False, add_generation_prompt=True)
        )
    except (TemplateError, ValueError) as error:
        begun, whole = "", f"({error})"
    start = "".join(tokenizer.convert_ids_to_tokens(start_token(tokenizer)))
    turn = whole.removeprefix(begun).removeprefix(start)  # every text has it anyway
    before, found, behind = turn.partition(slot)
    if not found or slot in behind or not begun or not whole.startswith(begun):
        log.warning(
            "the chat template of %s has no turn of its own for a user's text: %s",
            *(tokenizer.name_or_path, whole),
        )
        return None
    return lambda left, right: f"{before}{right}{behind}{left}"
