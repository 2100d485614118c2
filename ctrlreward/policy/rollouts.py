"""Rollouts: sampling completions from a policy, and their log-probabilities under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from ctrlreward.arguments import not_negative, positive
from ctrlreward.functional.policy import completion_mask
from ctrlreward.models.control_tokens import Pieces
from ctrlreward.models.output_layer import states_and_output, token_log_probs
from ctrlreward.models.tokenization import before_space, read_chunks, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Generation:
    """Sampling options, for rollouts and for `PolicyTuner.complete`.

    Args:
        num_generations: Completions per prompt of a rollout.
        max_completion_length: Longest completion, in tokens (TRL: 256).
        temperature: Sampling temperature of rollouts, and of log-probabilities, as in TRL.
        top_p: Sample from the smallest set of likeliest tokens whose probabilities, at the sampling
            temperature, sum to this or more, in (0, 1]. As in TRL, log-probabilities are of the
            whole distribution: below 1 they differ slightly from the sampling probabilities.
        top_k: Sample from the k likeliest tokens; 0 for all. Applied before `top_p`.
        min_p: Sample from tokens whose probability is at least this times the highest, in [0, 1];
            None for all. Applied after `top_p`.
        eval_temperature: Sampling temperature of `PolicyTuner.complete`, and so of validations and
            reports; 0 decodes greedily. None: `temperature`.
        stop: A string that ends completions, in addition to the model's end tokens, and is removed
            from the text. It has to be a single token, such as a newline.
        chat: Whether the policy reads each prompt as a user's message, through the tokenizer's chat
            template with its start of an answer, as TRL's trainers do with conversations. The
            template's end of turn ends completions. A text is still prefix + completion: since an
            answer is an independent text, use `""` as prefix. Without it, a prompt of a causal
            policy is read up to the spaces at its end, which are part of the completion: "The food
            " is continued as "The food". Line breaks are read.
        system: System message of each conversation; None for the default of the template, if any.
        chat_template_kwargs: Further variables of the template, such as `enable_thinking`.

    Example:
        >>> Generation(num_generations=4, chat=True, system="Answer in one sentence.").temperature
        1.0
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
        not_negative("generation.eval_temperature", self.eval_temperature)
        for name in ("system", "chat_template_kwargs"):
            if getattr(self, name) is not None and not self.chat:
                raise ValueError(f"generation.{name} is part of a chat: set generation.chat")


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


def sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Pieces],
    options: Generation,
    temperature: float | None = None,
) -> Rollout:
    """Sample one completion per prompt, with torch's global generator.

    `model` is a causal or encoder-decoder `PreTrainedModel`, or a `PeftModel` on one, whose
    generation config has the end tokens and the decoder's start token, and no setting that changes
    the distribution. Control tokens in the texts of prompts are text
    (`prompts.model_texts`). The temperature 0 decodes greedily; None takes it from the options.
    """
    distinct = list(dict.fromkeys(prompts))  # read once each
    ids, attention = encode_prompts(model, tokenizer, distinct, special_tokens=not options.chat)
    rows = torch.tensor([distinct.index(prompt) for prompt in prompts], device=ids.device)
    temperature = options.temperature if temperature is None else temperature
    has_encoder = model.config.is_encoder_decoder
    config = GenerationConfig(
        max_new_tokens=options.max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=temperature > 0,
        cache_implementation="static" if ids.is_cuda and not has_encoder else None,
    )
    if temperature:
        cuts = {"top_k": options.top_k, "top_p": options.top_p, "min_p": options.min_p}
        config.update(temperature=temperature, **cuts)
    inputs: dict[str, Any] = {"input_ids": ids[rows], "attention_mask": attention[rows]}
    with torch.inference_mode():
        if not has_encoder and not ids.is_cuda and len(ids) < len(rows) and ids.shape[1] > 1:
            # All but the last token of the distinct prompts, read before they are repeated.
            _, read = states_and_output(
                model,
                input_ids=ids[:, :-1],
                attention_mask=attention[:, :-1],
                position_ids=token_positions(attention[:, :-1]),
                use_cache=True,
            )
            name = "cache" if "cache" in read else "past_key_values"  # before transformers 5.24
            inputs[name] = read[name]
            inputs[name].reorder_cache(rows)
        output = model.generate(generation_config=config, **inputs)
    # After the prompt, or the token that the decoder starts with; a copy for use with gradients.
    new = output[:, 1 if has_encoder else ids.shape[1] :].clone()
    end = end_tokens(model).to(new.device)
    mask, is_end = completion_mask(new, end), torch.isin(new, end)
    is_text = mask.bool() & ~is_end
    completions = tokenizer.batch_decode(
        [row[kept] for row, kept in zip(new, is_text, strict=True)], skip_special_tokens=True
    )
    ids = torch.cat([ids[rows], new], dim=1)
    attention = torch.cat([attention[rows], mask.long()], dim=1)
    return Rollout(completions, ids, attention, mask, is_end.any(dim=-1))


def encode_prompts(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Pieces],
    special_tokens: bool,
) -> tuple[Tensor, Tensor]:
    """Return padded ids and attention of prompts, texts or in pieces.

    `special_tokens` is False for a rendered chat. Else a causal model reads a prompt without the
    spaces at its end (`before_space`).
    """
    has_encoder = model.config.is_encoder_decoder
    rows = [(prompt,) if isinstance(prompt, str) else prompt for prompt in prompts]
    if special_tokens and not has_encoder:
        rows = [(before_space(str(prompt)),) for (prompt,) in rows]
    ids = [reading.ids for reading in read_chunks(tokenizer, rows)]
    if special_tokens and has_encoder:
        # An end token after the prompt of a causal model would end the text.
        before, after = special_ids(tokenizer)
        ids = [[*before, *row, *after] for row in ids]
    # BART counts positions from the left, padding included.
    side = "right" if has_encoder else "left"
    batch = tokenizer.pad({"input_ids": ids}, padding_side=side, return_tensors="pt")
    return batch.input_ids.to(model.device), batch.attention_mask.to(model.device)


def log_probs(model: Any, rollout: Rollout, temperature: float) -> Tensor:
    """Compute the log-probability of each completion token, float32, shape (n, new).

    Masked tokens get 0. Differentiable. Logits are divided by the sampling temperature.
    """
    new = rollout.mask.shape[1]
    if model.config.is_encoder_decoder:
        start = model.generation_config.decoder_start_token_id
        first = rollout.ids.new_full((len(rollout.ids), 1), start)
        states, _ = states_and_output(
            model,
            input_ids=rollout.ids[:, :-new],
            attention_mask=rollout.attention[:, :-new],
            decoder_input_ids=torch.cat([first, rollout.ids[:, -new:-1]], dim=1),
        )
    else:
        hidden, _ = states_and_output(
            model,
            input_ids=rollout.ids,
            attention_mask=rollout.attention,
            position_ids=token_positions(rollout.attention),
        )
        states = hidden[:, -new - 1 : -1]
    kept = rollout.mask.bool()
    tokens = rollout.ids[:, -new:][kept]
    rows = torch.arange(len(tokens), device=tokens.device)
    values = token_log_probs(model, states[kept], rows, tokens, temperature)
    return torch.zeros_like(rollout.mask).masked_scatter(kept, values)


def token_positions(attention: Tensor) -> Tensor:
    """Return the position of each token in its row, padding not counted."""
    return (attention.cumsum(dim=1) - 1).clamp(min=0)


def add_end_tokens(
    model: Any, tokenizer: PreTrainedTokenizerBase, stop: str | None, end_of_turn: Sequence[int]
) -> None:
    """Add a stop string, and the tokens that end a turn, to the tokens that end completions."""
    ids = [] if stop is None else tokenizer.encode(stop, add_special_tokens=False)
    if stop is not None and len(ids) != 1:
        raise ValueError(
            f"generation.stop must be a single token, but {stop!r} is {len(ids)} tokens of this "
            "tokenizer"
        )
    known = end_tokens(model).tolist()
    model.generation_config.eos_token_id = list(dict.fromkeys([*known, *end_of_turn, *ids]))


def end_tokens(model: Any) -> Tensor:
    """Return the ids of the tokens that end a completion, shape (k,)."""
    end = model.generation_config.eos_token_id
    return torch.tensor([end] if isinstance(end, int) else end or [])
