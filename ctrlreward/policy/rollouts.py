"""Rollouts: sampling completions from a policy, and their log-probabilities under it.

Sampling has the distribution of `generate` of transformers, with three optimisations: equal
prompts are read once, tokens are drawn by cumulative probabilities, and a step is one graph on
CUDA (`cuda_graph`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ctrlreward.arguments import checked_keywords, not_negative, positive
from ctrlreward.engine.output_layer import logit_blocks, states_and_output, token_log_probs
from ctrlreward.functional.policy import completion_mask
from ctrlreward.models.control_tokens import real_ids, text_reader
from ctrlreward.models.tokenization import before_space
from ctrlreward.policy.cuda_graph import FixedSteps, has_fixed_steps
from ctrlreward.progress import track_part

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BLOCK = 128  # words
_BELOW_1 = 1 - 2**-40  # times a number is always less than the number


@checked_keywords(
    group_size="num_generations",
    num_return_sequences="num_generations",
    max_new_tokens="max_completion_length",
    response_length="max_completion_length",
    stop_token="stop",
    stop_strings="stop",
    system_prompt="system",
)
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
        top_k: Sample from the k likeliest tokens; 0 for all. Applied before `top_p`, and `min_p`
            after it.
        min_p: Sample from tokens whose probability is at least this times the highest, in [0, 1];
            None for all.
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
        cuda_graph: Whether a decoder-only policy on one GPU decodes by a CUDA graph, where its
            layers allow that. The texts are the same up to rounding.

    Raises:
        ValueError: A number is out of range, or an option of chats is given without `chat`.

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
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        for name in ("num_generations", "max_completion_length", "temperature"):
            positive(f"generation.{name}", getattr(self, name))
        for name, holds, what in (
            ("top_p", 0 < self.top_p <= 1, "in (0, 1], 1 for all tokens"),
            ("top_k", self.top_k >= 0, "0 (all tokens) or more"),
            ("min_p", 0 <= (self.min_p or 0) <= 1, "in [0, 1]"),
        ):
            if not holds:
                raise ValueError(f"generation.{name} must be {what}, got {getattr(self, name)}")
        not_negative("generation.eval_temperature", self.eval_temperature)
        for name in ("system", "chat_template_kwargs"):
            given = getattr(self, name)
            if given is not None and not self.chat:
                raise ValueError(
                    f"generation.{name} = {given!r} is part of a chat. Set generation.chat to True."
                )

    @cached_property
    def truncate(self) -> Any:
        """Function from ids, which it ignores, and logits to logits with -inf for cut tokens."""
        steps = LogitsProcessorList()
        if self.top_k:
            steps.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            steps.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            steps.append(MinPLogitsWarper(self.min_p))
        return steps


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
            completions, self.ids[rows], self.attention[rows], self.mask[rows], self.ended[rows]
        )


def joined_rollouts(rollouts: Sequence[Rollout], padding: int, left: bool) -> Rollout:
    """Concatenate rollouts, padded to the longest prompt and the longest completion.

    `padding` is the id of padding, and `left` whether prompts have it on the left.
    """
    new = max(r.mask.shape[1] for r in rollouts)
    old = max(r.ids.shape[1] - r.mask.shape[1] for r in rollouts)

    def padded(rollout: Rollout, ids: Tensor, value: int) -> Tensor:
        width = rollout.mask.shape[1]
        missing = old - (ids.shape[1] - width)
        prompts = pad(ids[:, :-width], (missing, 0) if left else (0, missing), value=value)
        return torch.cat([prompts, pad(ids[:, -width:], (0, new - width), value=value)], dim=1)

    return Rollout(
        [completion for r in rollouts for completion in r.completions],
        torch.cat([padded(r, r.ids, padding) for r in rollouts]),
        torch.cat([padded(r, r.attention, 0) for r in rollouts]),
        torch.cat([pad(r.mask, (0, new - r.mask.shape[1])) for r in rollouts]),
        torch.cat([r.ended for r in rollouts]),
    )


class PolicyOutput(NamedTuple):
    """Outputs of a policy for the tokens of a rollout.

    Attributes:
        log_probs: Log-probability of each token, 0 where masked, float32, shape (n, new).
        values: Expected return before each token, shape (n, new); None without a value head.
    """

    log_probs: Tensor
    values: Tensor | None


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    options: Generation,
    temperature: float | None = None,
    seeds: Sequence[int] | None = None,
) -> Rollout:
    """Sample one completion per prompt, with torch's global generator or a seed per prompt.

    `model` is a causal or encoder-decoder `PreTrainedModel`, or a `PeftModel` on one, whose
    generation config has the end tokens and the decoder's start token, and no setting that changes
    the distribution. Control tokens in prompts are text, except for those that have marks
    (`prompts.model_texts`). The temperature 0 decodes greedily; None takes it from the options.

    With `seeds`, one of 64 bits for each prompt, a completion is independent of its batch.
    """
    distinct = list(dict.fromkeys(prompts))  # read once each
    rows = torch.tensor([distinct.index(prompt) for prompt in prompts], device=model.device)
    ids, attention = encode_prompts(model, tokenizer, distinct, special_tokens=not options.chat)
    end, most = end_tokens(model).to(ids.device), options.max_completion_length
    temperature = options.temperature if temperature is None else temperature
    uniform = None if seeds is None else _uniform(seeds, most, ids.device)
    has_encoder = model.config.is_encoder_decoder
    tokens: list[Tensor] = []
    done = torch.zeros(len(prompts), dtype=torch.bool, device=ids.device)
    with torch.inference_mode():  # 3 % faster than `no_grad`
        positions = token_positions(attention)
        if has_encoder:
            start = model.generation_config.decoder_start_token_id
            first = {"decoder_input_ids": ids.new_full((len(ids), 1), start)}
        else:
            first = {"position_ids": positions}
        hidden, output = states_and_output(
            model, input_ids=ids, attention_mask=attention, use_cache=True, **first
        )
        cache, states = output.past_key_values, hidden[:, -1][rows]
        seen, position = attention[rows], positions[rows, -1:]
        fixed: FixedSteps | None = None
        if options.cuda_graph and has_fixed_steps(model, cache, most, ids.device.type):
            fixed = FixedSteps(model, cache, rows, seen, position, most)
        else:
            cache.reorder_cache(rows)
        encoded = (output.encoder_last_hidden_state[rows],) if has_encoder else ()
        with track_part("sampling", len(prompts)) as advance:
            while True:
                (values,) = logit_blocks(model, states, temperature=temperature or 1.0)
                if temperature == 0:
                    largest, drawn = values.max(dim=-1)
                    _check_finite(largest)
                else:
                    column = None if uniform is None else uniform[:, len(tokens), None]
                    drawn = draw(options.truncate(ids, values), column)
                tokens.append(drawn.masked_fill(done, tokenizer.pad_token_id))
                done = done | torch.isin(drawn, end)
                advance(len(prompts) / most)  # a token of each, as a share of all texts
                if len(tokens) == most or bool(done.all()):
                    break
                last = tokens[-1][:, None]
                if fixed is not None:
                    states = fixed(last)
                    continue
                if has_encoder:
                    inputs = {"encoder_outputs": encoded, "decoder_input_ids": last}
                else:
                    seen, position = pad(seen, (0, 1), value=1), position + 1
                    inputs = {"input_ids": last, "position_ids": position}
                hidden, _ = states_and_output(
                    model, attention_mask=seen, past_key_values=cache, use_cache=True, **inputs
                )
                states = hidden[:, 0]
    new = torch.stack(tokens, dim=1)
    mask, is_end = completion_mask(new, end), torch.isin(new, end)
    is_text = mask.bool() & ~is_end
    completions = tokenizer.batch_decode(
        [row[kept] for row, kept in zip(new, is_text, strict=True)], skip_special_tokens=True
    )
    ids = torch.cat([ids[rows], new], dim=1)
    attention = torch.cat([attention[rows], mask.long()], dim=1)
    return Rollout(completions, ids, attention, mask, is_end.any(dim=-1))


def _uniform(seeds: Sequence[int], tokens: int, device: torch.device) -> Tensor:
    """Return numbers in [0, 1) by seed, the same on any device, float64, shape (seeds, tokens)."""
    generator = torch.Generator()
    rows = [
        torch.rand(tokens, dtype=torch.float64, generator=generator.manual_seed(seed))
        for seed in seeds
    ]
    return torch.stack(rows).to(device)


def draw(logits: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Draw a token per row with the probabilities of its logits, by torch's global generator.

    A uniform number picks a block of the vocabulary and then the token in it, by cumulative
    probabilities in float64: one sum over the whole vocabulary took a tenth of a token.

    `logits`, shape (n, vocabulary), are overwritten. `uniform`, float64 in [0, 1), shape (n, 1),
    replaces the generator.
    """
    weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_()
    if missing := -weights.shape[1] % _BLOCK:
        weights = pad(weights, (0, missing))
    blocks = weights.unflatten(1, (-1, _BLOCK))
    cumulative = blocks.sum(dim=-1).double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    _check_finite(total)
    if uniform is None:
        uniform = torch.rand(len(logits), 1, dtype=torch.float64, device=logits.device)
    point = uniform.clamp(max=_BELOW_1) * total
    block = torch.searchsorted(cumulative, point, right=True)
    end = cumulative.gather(1, block)
    start = cumulative.gather(1, (block - 1).clamp(min=0)).masked_fill(block == 0, 0.0)
    rows = torch.arange(len(logits), device=logits.device)
    inside = blocks[rows, block[:, 0]].double().cumsum(dim=-1)
    share = ((point - start) / (end - start)).clamp(min=0.0, max=_BELOW_1)
    return (block * _BLOCK + torch.searchsorted(inside, share * inside[:, -1:], right=True))[:, 0]


def _check_finite(numbers: Tensor) -> None:
    if not torch.isfinite(numbers).all():
        raise RuntimeError(
            "the policy's logits are NaN or infinite, so no token can be drawn. Lower the learning "
            "rate, clip gradients, or use float32 or bfloat16."
        )


def encode_prompts(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[str], special_tokens: bool
) -> tuple[Tensor, Tensor]:
    """Return padded ids and attention of prompts, which may have marks of control tokens.

    `special_tokens` is False for a rendered chat. Else a causal model reads a prompt without the
    spaces at its end (`before_space`).
    """
    has_encoder = model.config.is_encoder_decoder
    if special_tokens and not has_encoder:
        prompts = [before_space(prompt) for prompt in prompts]
    reader = text_reader(tokenizer, prompts)
    batch = reader(
        prompts,
        # An end token after the prompt of a causal model would end the text.
        add_special_tokens=special_tokens and has_encoder,
        padding=True,
        # BART counts positions from the left, padding included.
        padding_side="right" if has_encoder else "left",
    )
    ids = batch.input_ids
    if reader is not tokenizer:
        ids = [real_ids(tokenizer, row) for row in ids]
    attention = torch.tensor(batch.attention_mask, device=model.device)
    return torch.tensor(ids, device=model.device), attention


def log_probs(model: Any, rollout: Rollout, temperature: float) -> Tensor:
    """Compute the log-probability of each completion token, float32, shape (n, new).

    Masked tokens get 0. Differentiable. Logits are divided by the sampling temperature.
    """
    return policy_output(model, rollout, temperature).log_probs


def policy_output(
    model: Any, rollout: Rollout, temperature: float, value_head: nn.Module | None = None
) -> PolicyOutput:
    """Compute `log_probs` and, with a value head, the values of the same hidden states."""
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
    scattered = torch.zeros_like(rollout.mask).masked_scatter(kept, values)
    return PolicyOutput(scattered, None if value_head is None else value_head(states))


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
