"""Output layer: log-probabilities of chosen tokens from hidden states, in blocks of logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctrlreward.processor.accelerators import free_unused
from ctrlreward.processor.onednn import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Size of a block of logits, states × vocabulary. On the CPU, a block of 4 MiB stays in the cache
# between the matrix product and its logsumexp, and weights are read once for many states. Blocks of
# 16 MiB took up to 25 % longer and, through heap fragmentation, five times the memory (2,048
# states); full rows took twice as long.
_CPU_STATES, _CPU_WORDS = 2**10, 2**10
_CUDA_LOGITS = 2**22


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
    model: PreTrainedModel, hidden: Tensor, states: Tensor, tokens: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the log-probability of `tokens[k]` given the state `hidden[states[k]]`, float32, (k,).

    Differentiable with respect to the states, shape (states, width), and the weights. The logits of
    a state, which are divided by `temperature`, are computed once, and only for states
    in `states`. A block of logits that does not fit into the device's memory is halved. `states`
    and `tokens` may be on the CPU.
    """
    used, states = states.unique(return_inverse=True)
    if len(used) < len(hidden):
        hidden = hidden[used.to(hidden.device)]
    states, tokens = states.to(hidden.device), tokens.to(hidden.device)
    vocabulary = len(model.get_output_embeddings().weight)
    rows, words = _CPU_STATES, _CPU_WORDS
    if hidden.device.type != "cpu":
        rows, words = max(1, _CUDA_LOGITS // vocabulary), vocabulary
    edges = [*range(0, vocabulary, words), vocabulary]
    result = hidden.new_zeros(len(tokens), dtype=torch.float32)
    rows, start = min(rows, len(hidden)), 0
    while start < len(hidden):
        inside = ((states >= start) & (states < start + rows)).nonzero().squeeze(-1)
        block = hidden[start : start + rows]
        values = None
        try:
            values = _gather(  # unnamed, so that the blocks are freed after an error
                logit_blocks(model, block, words, temperature),
                *(len(block), edges, states[inside] - start, tokens[inside]),
            )
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
        if values is None:
            free_unused()
            rows //= 2
            continue
        result = result.index_copy(0, inside, values)
        start += rows
    return result


def _gather(
    blocks: Iterable[Tensor], rows: int, edges: Sequence[int], states: Tensor, tokens: Tensor
) -> Tensor:
    """Return the log-probability of `tokens[k]` in row `states[k]` of logits, shape (k,).

    `blocks` are logits of consecutive parts of the vocabulary, each of shape (rows, words), and
    `edges` has the first word of each, and the size of the vocabulary.
    """
    tokens, order = tokens.sort()
    cuts = torch.searchsorted(tokens, torch.tensor(edges, device=tokens.device)).tolist()
    # Allocated before the large blocks: small tensors between them would fragment the heap.
    sums = torch.empty((len(edges) - 1, rows), device=tokens.device)
    picked = torch.empty(len(tokens), device=tokens.device)
    for k, (logits, (start, end)) in enumerate(zip(blocks, pairwise(cuts), strict=True)):
        sums[k] = logits.logsumexp(dim=-1)
        picked[start:end] = logits[states[order[start:end]], tokens[start:end] - edges[k]]
    values = picked - sums.logsumexp(dim=0)[states[order]]
    return torch.zeros_like(values).index_copy(0, order, values)


def check_output_layer(model: PreTrainedModel) -> None:
    """Check that `token_log_probs` computes the logits that the model itself returns."""
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        hidden, _ = states_and_output(model, input_ids=ids, **extra)
        expected = model(input_ids=ids, **extra, use_cache=False).logits
        (ours,) = logit_blocks(model, hidden)
    if not torch.allclose(ours, expected.float(), rtol=1e-2, atol=1e-2):
        raise ValueError(
            f"{model.config.model_type} models transform their logits after the output layer in a "
            "way that ctrlreward does not support. Use another base model, or open an issue."
        )


def logit_blocks(
    model: PreTrainedModel,
    hidden: Tensor,
    words: int | None = None,
    temperature: float = 1.0,
    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor] = linear,
) -> Iterator[Tensor]:
    """Yield the float32 logits of hidden states, in blocks of `words` words of the vocabulary.

    Includes the transformations that models apply after the layer: a bias (BART, PEGASUS), a scale
    (Cohere, Granite), a soft cap (Gemma). Logits are divided by `temperature`; `multiply` computes
    the layer's product from states, weights and bias.
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
        values = multiply(hidden, weight, bias).float()
        if final_bias is not None:
            values += final_bias
        if scale != 1 and not folded:
            values *= scale
        if cap is not None:
            values = cap * torch.tanh(values / cap)
        yield values if folded or temperature == 1 else values.div_(temperature)
