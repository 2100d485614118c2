"""Output layer: log-probabilities of chosen tokens from hidden states, in blocks of logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ctrlreward.models.accelerators import free_unused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Logits of a block, states × words of the vocabulary. On the CPU, a block of 4 MiB stays in the
# cache between the matrix product and its logsumexp, and weights are read once for many states.
# Blocks of 16 MiB took up to 25 % longer and, through heap fragmentation, five times the memory
# (2,048 states); full rows took twice as long.
CPU_BLOCK, MIN_WORDS = 2**20, 2**10
_CUDA_BLOCK = 2**22


def block_shape(block: int | None, states: int, vocabulary: int, device: str) -> tuple[int, int]:
    """Return the states and words of a block of logits: whole rows on an accelerator."""
    if device != "cpu":
        return max(1, min(states, (block or _CUDA_BLOCK) // vocabulary)), vocabulary
    block = block or CPU_BLOCK
    most = max(1, block // MIN_WORDS)
    rows = -(-states // -(-states // most)) if states else 1  # blocks of equal size
    # A smaller block of few states is as fast; a large budget asks for few operations.
    words = MIN_WORDS if block <= CPU_BLOCK else max(MIN_WORDS, block // rows)
    return rows, min(vocabulary, words)


def states_and_output(model: PreTrainedModel, **inputs: Any) -> tuple[Tensor, Any]:
    """Return the input of the output layer, (rows, tokens, width), and the output, without logits.

    The layer itself runs on zero rows, since even one token's logits would read all its weights.
    """
    captured: list[Tensor] = []

    def capture(layer: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        captured.append(args[0])
        return (args[0][:0],)

    hook = model.get_output_embeddings().register_forward_pre_hook(capture)
    try:
        output = model(**{"use_cache": False, **inputs})
    finally:
        hook.remove()
    return captured[0], output


def token_log_probs(
    model: PreTrainedModel,
    hidden: Tensor,
    states: Tensor,
    tokens: Tensor,
    temperature: float = 1.0,
    block: int | None = None,
) -> Tensor:
    """Return the log-probability of `tokens[k]` given the state `hidden[states[k]]`, float32, (k,).

    Differentiable in the states, (states, width), and the weights. Logits, divided by
    `temperature`, are computed `block` at a time, or half of it where memory runs out. `states` and
    `tokens` may be on the CPU.
    """
    used, states = states.unique(return_inverse=True)
    if len(used) < len(hidden):
        hidden = hidden[used.to(hidden.device)]
    states, tokens = states.to(hidden.device), tokens.to(hidden.device)
    vocabulary = len(model.get_output_embeddings().weight)
    rows, words = block_shape(block, len(hidden), vocabulary, hidden.device.type)
    edges = [*range(0, vocabulary, words), vocabulary]
    result, start = hidden.new_zeros(len(tokens), dtype=torch.float32), 0
    while start < len(hidden):
        inside: Any = slice(None)
        if rows < len(hidden):  # nonzero waits for the device
            inside = ((states >= start) & (states < start + rows)).nonzero().squeeze(-1)
        values = None
        try:
            values = _gather(  # unnamed, so that the blocks are freed after an error
                logit_blocks(model, hidden[start : start + rows], words, temperature),
                *(min(rows, len(hidden) - start), edges, states[inside] - start, tokens[inside]),
            )
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
        if values is None:
            free_unused()
            rows //= 2
            continue
        if rows >= len(hidden):
            return values
        result = result.index_copy(0, inside, values)
        start += rows
    return result


def _gather(
    blocks: Iterable[Tensor], rows: int, edges: Sequence[int], states: Tensor, tokens: Tensor
) -> Tensor:
    """Return the log-probability of `tokens[k]` in row `states[k]` of blocks of logits."""
    if len(edges) == 2:
        (logits,) = blocks
        return logits[states, tokens] - logits.logsumexp(dim=-1)[states]
    tokens, order = tokens.sort()
    states = states[order]
    starts = torch.tensor(edges, device=tokens.device)
    cuts = torch.searchsorted(tokens, starts)
    counts = cuts.diff()
    words = tokens - starts[:-1].repeat_interleave(counts)
    sizes = counts.tolist()
    places = zip(states.split(sizes), words.split(sizes), strict=True)
    # Allocated before the large blocks: small tensors between them would fragment the heap.
    sums = torch.empty((len(sizes), rows), device=tokens.device)
    picked, end = torch.empty(len(tokens), device=tokens.device), 0
    for k, (logits, place) in enumerate(zip(blocks, places, strict=True)):
        start, end = end, end + sizes[k]
        picked[start:end] = logits[place]
        sums[k] = logits.logsumexp(dim=-1)
    values = picked - sums.logsumexp(dim=0)[states]
    return torch.zeros_like(values).index_copy(0, order, values)


def check_output_layer(model: PreTrainedModel) -> None:
    """Check that `token_log_probs` computes the logits that the model itself returns."""
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    inputs = {"input_ids": ids, "attention_mask": ids + 1}  # else some models warn of padding
    inputs |= {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        hidden, _ = states_and_output(model, **inputs)
        expected = model(**inputs, use_cache=False).logits
        (ours,) = logit_blocks(model, hidden)
    if not torch.allclose(ours, expected.float(), rtol=1e-2, atol=1e-2):
        raise ValueError(
            f"model must not change the logits of its output layer, got a {model.config.model_type}"
        )


def logit_blocks(
    model: PreTrainedModel,
    hidden: Tensor,
    words: int | None = None,
    temperature: float = 1.0,
) -> Iterator[Tensor]:
    """Yield the float32 logits of hidden states, in blocks of `words` words of the vocabulary.

    Includes the transformations that models apply after the layer: a bias (BART, PEGASUS), a scale
    (Cohere, Granite), a soft cap (Gemma). Logits are divided by `temperature`.
    """
    layer, config = model.get_output_embeddings(), model.config
    final = getattr(model, "final_logits_bias", None)  # also of the model in a PeftModel
    scale = getattr(config, "logit_scale", None) or 1 / getattr(config, "logits_scaling", 1)
    cap = getattr(config, "final_logit_softcapping", None)
    # A factor of the states saves passes over the logits, which are a hundred times as large. In
    # bfloat16 it would round the states.
    is_linear = layer.bias is None and final is None and cap is None
    folded = is_linear and hidden.dtype == torch.float32
    if folded and scale != temperature:
        hidden = hidden * (scale / temperature)
    # Split once: the gradient of a slice per block would be as large as all weights each time.
    words = words or len(layer.weight)
    weights = layer.weight.split(words)
    layer_biases = repeat(None) if layer.bias is None else layer.bias.split(words)
    final_biases = repeat(None) if final is None else final.split(words, dim=-1)
    for weight, bias, final_bias in zip(weights, layer_biases, final_biases, strict=False):
        values = linear(hidden, weight, bias)
        values = values if values.dtype == torch.float32 else values.float()
        if final_bias is not None:
            values += final_bias
        if scale != 1 and not folded:
            values *= scale
        if cap is not None:
            values = cap * torch.tanh(values / cap)
        yield values if folded or temperature == 1 else values.div_(temperature)
