"""Rollouts: sampling completions from a policy, and their log-probabilities under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ctrlreward.arguments import checked_keywords, positive
from ctrlreward.engine.output_layer import hidden_states, token_log_probs
from ctrlreward.functional.policy import completion_mask, ended
from ctrlreward.models.control_tokens import real_ids, text_reader
from ctrlreward.policy.decoding import (
    CausalDecoder,
    Decoder,
    EncoderDecoder,
    Truncation,
    decode,
    token_positions,
)
from ctrlreward.policy.keywords import GENERATION

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rows: TypeAlias = list[list[int]]


@checked_keywords(**GENERATION)
@dataclass(frozen=True)
class Generation:
    """Sampling options, for rollouts and for `PolicyTuner.complete`.

    Args:
        num_generations: Completions per prompt of a rollout.
        max_completion_length: Longest completion, in tokens (TRL: 256).
        temperature: Sampling temperature of rollouts. Log-probabilities are those at this
            temperature, as in TRL.
        top_p: Sample from the smallest set of likeliest tokens whose probabilities, at the sampling
            temperature, sum to this or more, in (0, 1]. As in TRL, log-probabilities are those of
            the whole distribution: below 1 they are not quite those that tokens were sampled with.
        top_k: Sample from the k likeliest tokens; 0 for all. Applied before `top_p`, and `min_p`
            after it.
        min_p: Sample from tokens whose probability is at least this times the highest, in [0, 1];
            None for all.
        eval_temperature: Sampling temperature of `PolicyTuner.complete`, and so of validations and
            reports; 0 decodes greedily. None: that of rollouts.
        stop: A string that ends completions, in addition to the model's end tokens, and is removed
            from the text. It has to be a single token, such as a newline.
        chat: Whether the policy reads each prompt as a user's message, through the tokenizer's chat
            template with its start of an answer, as TRL's trainers do with conversations. The
            template's end of turn ends completions. A text is still prefix + completion: since an
            answer is a text of its own, use `""` as prefix.
        system: System message of each conversation; None for the template's own, if any.
        chat_template_kwargs: Further variables of the template, such as `enable_thinking`.

    Raises:
        ValueError: A number is out of range, or an option of chats is given without `chat`.

    Example:
        >>> Generation(num_generations=4, chat=True, system="Answer in one sentence.").temperature
        1.0
        >>> Generation(system="Answer in one sentence.")
        Traceback (most recent call last):
        ValueError: generation.system = 'Answer in one sentence.' is part of a chat: ...
    """

    num_generations: int = 8
    max_completion_length: int = 32
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    eval_temperature: float | None = None
    stop: str | None = None
    chat: bool = False
    system: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("num_generations", "max_completion_length", "temperature"):
            positive(f"generation.{name}", getattr(self, name))
        if not 0 < self.top_p <= 1:
            raise ValueError(
                f"generation.top_p = {self.top_p}: give a number above 0, to 1 for all tokens"
            )
        if self.top_k < 0:
            raise ValueError(f"generation.top_k = {self.top_k}: give 0 for all tokens, or more")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"generation.min_p = {self.min_p}: give a number from 0 to 1")
        if self.eval_temperature is not None and not 0 <= self.eval_temperature < math.inf:
            raise ValueError(
                f"generation.eval_temperature = {self.eval_temperature}: give 0, or a number above"
            )
        for name in ("system", "chat_template_kwargs"):
            given = getattr(self, name)
            if given is not None and not self.chat:
                raise ValueError(
                    f"generation.{name} = {given!r} is part of a chat: set generation.chat to True"
                )

    @property
    def truncation(self) -> Truncation:
        """The tokens to sample from."""
        return Truncation(self.top_k, self.top_p, self.min_p)


@dataclass(frozen=True)
class Rollout:
    """Completions of n prompts.

    Attributes:
        completions: The sampled texts without the prompts, end tokens and special tokens.
        ids: Prompts with their completions, shape (n, length). Prompts are padded on the left, or
            on the right if an encoder reads them and a decoder generates the completions.
        attention: 1 where `ids` is not padding, shape (n, length).
        mask: 1 on the completions' tokens up to and including the end token, shape (n, new),
            float; the completions are the last `new` columns of `ids`.
        ended: True for completions with an end token, bool, shape (n,); the others were cut off by
            `max_completion_length`.
    """

    completions: list[str]
    ids: Tensor
    attention: Tensor
    mask: Tensor
    ended: Tensor

    def __getitem__(self, rows: Tensor) -> Rollout:
        """Select completions by row."""
        completions = [self.completions[row] for row in rows.tolist()]
        rows = rows.to(self.ids.device)
        return Rollout(
            completions,
            self.ids[rows],
            self.attention[rows],
            self.mask[rows],
            self.ended[rows],
        )


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    max_completion_length: int,
    temperature: float,
    special_tokens: bool = True,
    truncation: Truncation = Truncation(),
) -> Rollout:
    """Sample one completion per prompt, with torch's global generator.

    Without truncation, `log_probs` are the log-probabilities that the tokens were sampled with.

    Args:
        model: A causal or encoder-decoder `PreTrainedModel`, or a `PeftModel` on one; they share
            no type. Its generation config has the end tokens and the decoder's start token, and
            no setting that changes the distribution.
        tokenizer: The model's tokenizer.
        prompts: n prompts, which a causal model continues or an encoder reads. Control tokens in
            them are text, except for those that have marks (`chat.conversations`).
        max_completion_length: Longest completion.
        temperature: Sampling temperature; 0 decodes greedily.
        special_tokens: Whether an encoder reads the tokenizer's special tokens too; False if a chat
            template has put them into the prompts.
        truncation: Cuts off unlikely tokens, unless decoding is greedy.
    """
    family = _family(model)
    distinct = list(dict.fromkeys(prompts))  # read once each
    encoded = family.encode(tokenizer, distinct, special_tokens)
    ids, attention = (torch.tensor(rows, device=model.device) for rows in encoded)
    rows = [distinct.index(prompt) for prompt in prompts]
    end = _end_tokens(model).to(ids.device)
    new = decode(
        model,
        family.decoder(model),
        (ids, attention),
        rows,
        max_completion_length,
        temperature,
        truncation,
        end,
        tokenizer.pad_token_id,
    ).clone()  # inference tensors cannot be saved for a backward pass
    mask = completion_mask(new, end)
    is_text = mask.bool() & ~torch.isin(new, end)
    completions = tokenizer.batch_decode(
        [row[kept] for row, kept in zip(new, is_text, strict=True)], skip_special_tokens=True
    )
    ids = torch.cat([ids[rows], new], dim=1)
    attention = torch.cat([attention[rows], mask.long()], dim=1)
    return Rollout(completions, ids, attention, mask, ended(new, end))


def given(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    completions: Sequence[str],
    special_tokens: bool = True,
) -> Rollout:
    """Return completions that are given, instead of sampled, each with the last end token.

    Args:
        model: As in `sample`.
        tokenizer: The model's tokenizer.
        prompts: n prompts.
        completions: A completion of each. For a causal model, a space before the first word belongs
            to it.
        special_tokens: As in `sample`.
    """
    family = _family(model)
    encoded = family.encode(tokenizer, list(prompts), special_tokens)
    ids, attention = (torch.tensor(rows, device=model.device) for rows in encoded)
    end = int(_end_tokens(model)[-1])
    reader = text_reader(tokenizer, completions)
    rows = reader(list(completions), add_special_tokens=False).input_ids
    ends = [torch.tensor([*row, end]) for row in rows]
    new = pad_sequence(ends, batch_first=True, padding_value=end).to(model.device)
    lengths = torch.tensor([len(row) for row in ends], device=model.device)
    mask = (torch.arange(new.shape[1], device=model.device) < lengths[:, None]).float()
    ids = torch.cat([ids, new], dim=1)
    attention = torch.cat([attention, mask.long()], dim=1)
    done = torch.ones(len(rows), dtype=torch.bool, device=model.device)
    return Rollout(list(completions), ids, attention, mask, done)


def log_probs(model: Any, rollout: Rollout, temperature: float) -> Tensor:
    """Compute the log-probability of each completion token, float32, shape (n, new).

    Masked tokens get 0. Differentiable. Logits are divided by the sampling temperature.
    """
    return log_probs_from_states(model, states_before(model, rollout), rollout, temperature)


def log_probs_from_states(
    model: Any, states: Tensor, rollout: Rollout, temperature: float
) -> Tensor:
    """Compute `log_probs` from the hidden states that `states_before` returned."""
    kept = rollout.mask.bool()
    tokens = rollout.ids[:, -rollout.mask.shape[1] :][kept]
    rows = torch.arange(len(tokens), device=tokens.device)
    values = token_log_probs(model, states[kept], rows, tokens, temperature)
    return torch.zeros_like(rollout.mask).masked_scatter(kept, values)


def states_before(model: Any, rollout: Rollout) -> Tensor:
    """Compute the hidden states that predict each completion token, shape (n, new, width).

    These are the inputs of the output layer. Differentiable. An encoder runs once per
    completion, not once per token.
    """
    return _family(model).states(model, rollout)


class _Family(NamedTuple):
    """Differences between causal models and encoder-decoders.

    Attributes:
        encode: Tokenizes prompts, with special tokens if asked to and if the model reads them.
            Returns ids and attention.
        decoder: Returns a new decoder of a model.
        states: See `states_before`.
    """

    encode: Callable[[PreTrainedTokenizerBase, list[str], bool], tuple[Rows, Rows]]
    decoder: Callable[[Any], Decoder]
    states: Callable[[Any, Rollout], Tensor]


def _family(model: Any) -> _Family:
    return _ENCODER_DECODER if model.config.is_encoder_decoder else _CAUSAL


def _causal_states(model: Any, rollout: Rollout) -> Tensor:
    hidden = hidden_states(
        model,
        input_ids=rollout.ids,
        attention_mask=rollout.attention,
        position_ids=token_positions(rollout.attention),
    )
    return hidden[:, -rollout.mask.shape[1] - 1 : -1]


def _decoder_states(model: Any, rollout: Rollout) -> Tensor:
    new = rollout.mask.shape[1]
    start = model.generation_config.decoder_start_token_id
    first = rollout.ids.new_full((len(rollout.ids), 1), start)
    return hidden_states(
        model,
        input_ids=rollout.ids[:, :-new],
        attention_mask=rollout.attention[:, :-new],
        decoder_input_ids=torch.cat([first, rollout.ids[:, -new:-1]], dim=1),
    )


def _padded(
    tokenizer: PreTrainedTokenizerBase, prompts: list[str], special_tokens: bool, side: str
) -> tuple[Rows, Rows]:
    """Return ids and attention of prompts, which may have marks of control tokens."""
    batch = text_reader(tokenizer, prompts)(
        prompts, add_special_tokens=special_tokens, padding=True, padding_side=side
    )
    return [real_ids(tokenizer, row) for row in batch.input_ids], batch.attention_mask


_CAUSAL = _Family(
    # No special tokens: an end token after the prompt would end the text.
    lambda tokenizer, prompts, _: _padded(tokenizer, prompts, False, "left"),
    CausalDecoder,
    _causal_states,
)
_ENCODER_DECODER = _Family(
    # BART counts positions from the left, padding included.
    lambda tokenizer, prompts, special: _padded(tokenizer, prompts, special, "right"),
    EncoderDecoder,
    _decoder_states,
)


def stop_token(tokenizer: PreTrainedTokenizerBase, stop: str) -> int:
    """Return the id of a string that is a single token.

    Raises:
        ValueError: It is not.
    """
    ids = tokenizer.encode(stop, add_special_tokens=False)
    if len(ids) != 1:
        raise ValueError(
            f"generation.stop = {stop!r} is {len(ids)} tokens of this tokenizer: give a string "
            "that is a single token"
        )
    return ids[0]


def add_end_tokens(model: Any, tokens: Sequence[int]) -> None:
    """Add tokens to those that end a model's completions."""
    known = _end_tokens(model).tolist()
    model.generation_config.eos_token_id = [*known, *(t for t in tokens if t not in known)]


def _end_tokens(model: Any) -> Tensor:
    end = model.generation_config.eos_token_id
    return torch.tensor([end] if isinstance(end, int) else end or [])
