"""Rollouts: sampling completions from a policy, and their log-probabilities under it."""

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
class Generation:
    """Sampling options, for rollouts and for `PolicyTuner.complete`.

    Args:
        group_size: Completions per prompt of a rollout.
        max_new_tokens: Longest completion, in tokens.
        temperature: Sampling temperature.
        stop: A string that ends completions, in addition to the model's end tokens, and is removed
            from the text. It has to be a single token, such as a newline.
    """

    group_size: int = 8
    max_new_tokens: int = 32
    temperature: float = 1.0
    stop: str | None = None


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
            `max_new_tokens`.
    """

    completions: list[str]
    ids: Tensor
    attention: Tensor
    mask: Tensor
    ended: Tensor

    def __getitem__(self, rows: Tensor) -> Rollout:
        """Select completions by row."""
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
    """Sample one completion per prompt, with torch's global generator.

    Sampling uses the whole distribution (no top-k, no top-p), so that `log_probs` are the
    log-probabilities that the tokens were sampled with.

    Args:
        model: A causal or encoder-decoder `PreTrainedModel`, or a `PeftModel` on one; they share
            no type. Its generation config has the end tokens and the decoder's start token, and
            no setting that changes the distribution.
        tokenizer: The model's tokenizer.
        prompts: n prompts, which a causal model continues or an encoder reads.
        max_new_tokens: Longest completion.
        temperature: Sampling temperature; 0 decodes greedily.
    """
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    family = _family(model)
    batch = family.encode(tokenizer, list(prompts))
    prompt = torch.tensor(batch.input_ids, device=model.device)
    attention = torch.tensor(batch.attention_mask, device=model.device)
    with torch.no_grad():
        generated = model.generate(
            input_ids=prompt,
            attention_mask=attention,
            **(sampling if temperature > 0 else {"do_sample": False}),
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )
    new = generated[:, family.prefix_length(prompt) :]
    end = _end_tokens(model).to(new.device)
    mask = completion_mask(new, end)
    is_text = mask.bool() & ~torch.isin(new, end)
    completions = tokenizer.batch_decode(
        [row[kept] for row, kept in zip(new, is_text, strict=True)], skip_special_tokens=True
    )
    ids = torch.cat([prompt, new], dim=1)
    attention = torch.cat([attention, mask.long()], dim=1)
    return Rollout(completions, ids, attention, mask, ended(new, end))


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
        encode: Tokenizes prompts.
        prefix_length: Number of tokens that `generate` returns before the first new one.
        states: See `states_before`.
    """

    encode: Callable[[PreTrainedTokenizerBase, list[str]], BatchEncoding]
    prefix_length: Callable[[Tensor], int]
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
    # No special tokens: an end token after the prompt would end the text.
    lambda tokenizer, prompts: tokenizer(
        prompts, add_special_tokens=False, padding=True, padding_side="left"
    ),
    lambda prompt: prompt.shape[1],
    _causal_states,
)
_ENCODER_DECODER = _Family(
    # BART counts positions from the left, padding included.
    lambda tokenizer, prompts: tokenizer(prompts, padding=True, padding_side="right"),
    lambda prompt: 1,  # the decoder's start token
    _decoder_states,
)


def add_stop_token(model: Any, tokenizer: PreTrainedTokenizerBase, stop: str) -> None:
    """Add a string to the end tokens of a model.

    Raises:
        ValueError: The string is not a single token.
    """
    ids = tokenizer.encode(stop, add_special_tokens=False)
    if len(ids) != 1:
        raise ValueError(
            f"generation.stop = {stop!r} is {len(ids)} tokens of this tokenizer: give a string "
            "that is a single token"
        )
    model.generation_config.eos_token_id = [*_end_tokens(model).tolist(), *ids]


def _end_tokens(model: Any) -> Tensor:
    end = model.generation_config.eos_token_id
    return torch.tensor([end] if isinstance(end, int) else end or [])
