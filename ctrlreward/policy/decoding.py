"""Decoding: tokens drawn from a policy, several rows per prompt.

The work of `generate` of transformers with sampling, and its distribution, with three
savings: equal prompts are read once, tokens are drawn by cumulative probabilities
(`torch.multinomial` took a seventh of a rollout on two cores), and the products of the loop use
packed weights (`packing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ctrlreward.engine.output_layer import logit_blocks, states_and_output
from ctrlreward.policy.packing import packed_products
from ctrlreward.progress import part

_BLOCK = 128  # words
_BELOW_1 = 1 - 2**-40  # times a number is always less than the number


class Truncation(NamedTuple):
    """Cuts unlikely tokens off a distribution before one is drawn, in the order of the fields.

    The same tokens are left as by the logits processors of transformers; the likeliest always is.

    Attributes:
        top_k: Keep the k likeliest tokens; 0 keeps all.
        top_p: Keep the smallest set of likeliest tokens whose probabilities sum to top_p or more.
        min_p: Keep tokens whose probability is at least min_p times the highest; None keeps all.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float | None = None

    def apply(self, logits: Tensor) -> Tensor:
        """Return logits with -inf for the tokens that are cut off, shape (n, vocabulary)."""
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        if self.top_p < 1:
            ascending, order = logits.sort(dim=-1)
            cut = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.top_p
            cut[:, -1] = False
            logits = logits.masked_fill(cut.scatter(1, order, cut), -math.inf)
        if self.min_p:
            least = logits.amax(dim=-1, keepdim=True) + math.log(self.min_p)
            logits = logits.masked_fill(logits < least, -math.inf)
        return logits


class Decoder(Protocol):
    """A model that reads prompts and then one token per row and call.

    Attributes:
        cache: Its key-value cache, once it has read the prompts.
    """

    cache: Any

    def start(self, ids: Tensor, attention: Tensor, rows: Tensor) -> Tensor:
        """Read prompts.

        Args:
            ids: Shape (prompts, length).
            attention: 1 where `ids` is not padding, shape (prompts, length).
            rows: Prompt of each row, shape (n,).

        Returns:
            Hidden states that predict the first token, shape (n, width).
        """
        ...

    def read(self, tokens: Tensor) -> Tensor:
        """Read a token per row, shape (n,), and return the states that predict the next one."""
        ...


@torch.inference_mode()  # 3 % faster than `no_grad`
def decode(
    model: Any,
    decoder: Decoder,
    prompts: tuple[Tensor, Tensor],
    rows: Sequence[int],
    max_completion_length: int,
    temperature: float,
    truncation: Truncation,
    end: Tensor,
    padding: int,
) -> Tensor:
    """Return new tokens, inference tensor of shape (n, new); `padding` after an end token.

    Args:
        model: The model that the decoder runs.
        decoder: A new one.
        prompts: Ids and attention of the distinct prompts, each of shape (prompts, length).
        rows: Prompt of each of n rows.
        max_completion_length: Upper bound of `new`, which is less if all rows end before.
        temperature: Divisor of the logits; 0 decodes greedily.
        truncation: Applied to the divided logits.
        end: Tokens that end a row.
        padding: Token after the end.

    Raises:
        RuntimeError: The model's logits are NaN or infinite.
    """
    device = prompts[0].device
    tokens: list[Tensor] = []
    ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
    states = decoder.start(*prompts, torch.tensor(rows, device=device))
    token = len(rows) / max_completion_length  # of each row, as a share of all texts
    with (
        packed_products(model, len(rows)) as multiply,
        part("sampling", len(rows)) as advance,
    ):
        logits = logit_blocks(model, temperature=temperature or 1.0, multiply=multiply)
        while True:
            (values,) = logits(states)
            greedy = temperature == 0
            drawn = values.argmax(dim=-1) if greedy else draw(truncation.apply(values))
            tokens.append(drawn.masked_fill(ended, padding))
            ended = ended | torch.isin(drawn, end)
            advance(token)
            if len(tokens) == max_completion_length or bool(ended.all()):
                return torch.stack(tokens, dim=1)
            states = decoder.read(tokens[-1])


def draw(logits: Tensor) -> Tensor:
    """Draw a token per row with the probabilities of its logits, by torch's global generator.

    A uniform number picks a block of the vocabulary and then the token in it, by cumulative
    probabilities in float64. One cumulative sum over 49,152 words took 21 ms for 128 rows (two
    cores, AVX2), a tenth of a token.

    Args:
        logits: Shape (n, vocabulary). Overwritten: to map new memory of their size takes longer
            than the exponentials.

    Returns:
        Tokens, shape (n,).

    Raises:
        RuntimeError: A row has a NaN, or an infinite probability.
    """
    weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_()
    if missing := -weights.shape[1] % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, missing))
    blocks = weights.unflatten(1, (-1, _BLOCK))
    cumulative = blocks.sum(dim=-1).double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    if not torch.isfinite(total).all():
        raise RuntimeError(
            "the policy's logits are NaN or infinite, so no token can be drawn: lower the learning "
            "rate, clip gradients, or use float32 or bfloat16"
        )
    uniform = torch.rand(len(logits), 1, dtype=torch.float64, device=logits.device)
    point = uniform.clamp(max=_BELOW_1) * total
    block = torch.searchsorted(cumulative, point, right=True)
    end = cumulative.gather(1, block)
    start = cumulative.gather(1, (block - 1).clamp(min=0)).masked_fill(block == 0, 0.0)
    rows = torch.arange(len(logits), device=logits.device)
    inside = blocks[rows, block[:, 0]].double().cumsum(dim=-1)
    share = ((point - start) / (end - start)).clamp(min=0.0, max=_BELOW_1)
    return (block * _BLOCK + torch.searchsorted(inside, share * inside[:, -1:], right=True))[:, 0]


class CausalDecoder:
    """Decoder of a causal model; prompts are padded on the left.

    Args:
        model: The model.
    """

    cache: Any

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, ids: Tensor, attention: Tensor, rows: Tensor) -> Tensor:
        """See `Decoder`."""
        positions = token_positions(attention)
        hidden, output = states_and_output(
            self.model,
            input_ids=ids,
            attention_mask=attention,
            position_ids=positions,
            use_cache=True,
        )
        self.cache = output.past_key_values
        self.cache.reorder_cache(rows)
        self.attention, self.position = attention[rows], positions[rows, -1:]
        return hidden[:, -1][rows]

    def read(self, tokens: Tensor) -> Tensor:
        """See `Decoder`."""
        self.attention = torch.nn.functional.pad(self.attention, (0, 1), value=1)
        self.position = self.position + 1
        hidden, _ = states_and_output(
            self.model,
            input_ids=tokens[:, None],
            attention_mask=self.attention,
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
        )
        return hidden[:, 0]


class EncoderDecoder:
    """Decoder of an encoder-decoder, whose encoder reads the prompts.

    Args:
        model: The model.
    """

    cache: Any

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, ids: Tensor, attention: Tensor, rows: Tensor) -> Tensor:
        """See `Decoder`."""
        first = ids.new_full((len(ids), 1), self.model.generation_config.decoder_start_token_id)
        hidden, output = states_and_output(
            self.model,
            input_ids=ids,
            attention_mask=attention,
            decoder_input_ids=first,
            use_cache=True,
        )
        self.cache = output.past_key_values
        self.cache.reorder_cache(rows)
        self.encoded = (output.encoder_last_hidden_state[rows],)
        self.attention = attention[rows]
        return hidden[:, 0][rows]

    def read(self, tokens: Tensor) -> Tensor:
        """See `Decoder`."""
        hidden, _ = states_and_output(
            self.model,
            encoder_outputs=self.encoded,
            attention_mask=self.attention,
            decoder_input_ids=tokens[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        return hidden[:, 0]


def token_positions(attention: Tensor) -> Tensor:
    """Return the position of each token in its row, padding not counted.

    Args:
        attention: 1 where there is a token, shape (n, length).
    """
    return (attention.cumsum(dim=1) - 1).clamp(min=0)
