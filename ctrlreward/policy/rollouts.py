"""Sampling completions from a policy, and what the policy and its reference think of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ctrlreward.engine.output_layer import hidden_states, token_log_probs
from ctrlreward.functional.policy import completion_mask, ended

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Rollout:
    """Completions of n prompts.

    Attributes:
        completions: The sampled text behind each prompt, without end and special tokens.
        ids: Prompts with their completions, shape (n, length). Prompts are padded on the left;
            on the right where an encoder reads them and a decoder writes the completions.
        attention: 1 where `ids` is no padding, shape (n, length).
        mask: 1 on the completions' tokens up to and with the end token, shape (n, new), float;
            the completions are the last `new` columns of `ids`.
        ended: Which completions have an end token, bool, shape (n,); the others were cut off.
    """

    completions: list[str]
    ids: Tensor
    attention: Tensor
    mask: Tensor
    ended: Tensor

    def __getitem__(self, rows: Tensor) -> Rollout:
        """Some of the completions, by their places."""
        return Rollout(
            [self.completions[row] for row in rows.tolist()],
            self.ids[rows],
            self.attention[rows],
            self.mask[rows],
            self.ended[rows],
        )


def sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    max_new_tokens: int,
    temperature: float,
) -> Rollout:
    """One completion per prompt from the policy's whole distribution, by torch's global generator.

    Nothing is cut from the distribution (no top-k, no top-p), so that `log_probs` are those of
    the tokens as they were drawn.

    Args:
        model: A causal or encoder-decoder `PreTrainedModel`, or a `PeftModel` on one; they share
            no type. Its generation config names the end tokens and what a decoder starts with,
            and holds nothing that shapes sampling.
        tokenizer: The model's.
        prompts: What completions follow, or what an encoder reads, n of them.
        max_new_tokens: Longest completion.
        temperature: Of sampling; 0 takes the likeliest token each time.
    """
    drawing = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    family = _family(model)
    batch = family.encode(tokenizer, list(prompts))
    prompt = torch.tensor(batch.input_ids, device=model.device)
    attention = torch.tensor(batch.attention_mask, device=model.device)
    with torch.no_grad():
        written = model.generate(
            input_ids=prompt,
            attention_mask=attention,
            **(drawing if temperature > 0 else {"do_sample": False}),
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
    new = written[:, family.opening(prompt) :]
    end = _end_tokens(model).to(new.device)
    mask = completion_mask(new, end)
    text = mask.bool() & ~torch.isin(new, end)
    completions = tokenizer.batch_decode(
        [row[kept] for row, kept in zip(new, text, strict=True)], skip_special_tokens=True
    )
    ids = torch.cat([prompt, new], dim=1)
    attention = torch.cat([attention, mask.long()], dim=1)
    return Rollout(completions, ids, attention, mask, ended(new, end))


def log_probs(model: Any, rollout: Rollout, temperature: float) -> Tensor:
    """Log-probability of each completion token, float32, shape (n, new); 0 where masked.

    Differentiable; sampling temperature is taken into account.
    """
    return log_probs_after(model, states_before(model, rollout), rollout, temperature)


def log_probs_after(model: Any, states: Tensor, rollout: Rollout, temperature: float) -> Tensor:
    """`log_probs` from the states of `states_before`."""
    kept = rollout.mask.bool()
    tokens = rollout.ids[:, -rollout.mask.shape[1] :][kept]
    places = torch.arange(len(tokens), device=tokens.device)
    values = token_log_probs(model, states[kept], places, tokens, temperature)
    return torch.zeros_like(rollout.mask).masked_scatter(kept, values)


def states_before(model: Any, rollout: Rollout) -> Tensor:
    """What reaches the output layer to predict each completion token, shape (n, new, width).

    Differentiable. An encoder runs once, whatever the length of what is written.
    """
    return _family(model).states(model, rollout)


class _Family(NamedTuple):
    """How a kind of model takes prompts and completions.

    Attributes:
        encode: Tokens of prompts.
        opening: How many tokens `generate` returns before the first new one.
        states: See `states_before`.
    """

    encode: Callable[[PreTrainedTokenizerBase, list[str]], BatchEncoding]
    opening: Callable[[Tensor], int]
    states: Callable[[Any, Rollout], Tensor]


def _family(model: Any) -> _Family:
    return _ENCODER_DECODER if model.config.is_encoder_decoder else _CAUSAL


def _causal_states(model: Any, rollout: Rollout) -> Tensor:
    positions = (rollout.attention.cumsum(dim=1) - 1).clamp(min=0)
    hidden = hidden_states(
        model,
        input_ids=rollout.ids,
        attention_mask=rollout.attention,
        position_ids=positions,
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


_CAUSAL = _Family(
    # An end token behind a prompt would end it: special tokens are the prompt's own affair.
    lambda tokenizer, prompts: tokenizer(
        prompts, add_special_tokens=False, padding=True, padding_side="left"
    ),
    lambda prompt: prompt.shape[1],
    _causal_states,
)
_ENCODER_DECODER = _Family(
    # BART counts positions from the left, padding included.
    lambda tokenizer, prompts: tokenizer(prompts, padding=True, padding_side="right"),
    lambda prompt: 1,  # what the decoder starts with
    _decoder_states,
)


def stop_at(model: Any, tokenizer: PreTrainedTokenizerBase, stop: str) -> None:
    """Makes a string end completions, beside the model's own end tokens.

    Raises:
        ValueError: The string is not one token.
    """
    ids = tokenizer.encode(stop, add_special_tokens=False)
    if len(ids) != 1:
        raise ValueError(
            f"stop = {stop!r} is {len(ids)} tokens of this tokenizer: give a string that is one"
        )
    model.generation_config.eos_token_id = [*_end_tokens(model).tolist(), *ids]


def _end_tokens(model: Any) -> Tensor:
    end = model.generation_config.eos_token_id
    return torch.tensor([end] if isinstance(end, int) else end or [])
