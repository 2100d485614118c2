"""From hidden states to the log-probabilities of chosen tokens, without logits for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ctrlreward.processor import heap
from ctrlreward.processor.onednn import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Logits that exist at one time: on the CPU of so many states and words of the vocabulary. Such a
# block, 4 MiB, stays in the cache between the product and the sum of its exponentials, and weights
# are read once for many states. Blocks of 16 MiB took up to a quarter longer and, with what lies
# between them in the heap, five times the memory (2,048 states); whole rows took twice as long.
_CPU_STATES, _CPU_WORDS = 2**10, 2**10
_LOGITS = 2**22


class Targets(NamedTuple):
    """Tokens whose log-probabilities are asked for.

    Attributes:
        states: Places of the hidden states that predict them, shape (k,).
        tokens: Token ids, shape (k,).
    """

    states: Sequence[int]
    tokens: Sequence[int]


def hidden_states(model: PreTrainedModel, **inputs: Any) -> Tensor:
    """What reaches the model's output layer, shape (rows, tokens, width).

    The layer itself gets no rows: the logits of a single token would read all of its weights.
    """
    kept: list[Tensor] = []

    def keep(layer: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        kept.append(args[0])
        return (args[0][:0],)

    hook = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        model(**inputs, use_cache=False)
    finally:
        hook.remove()
    return kept[0]


def target_log_probs(
    model: PreTrainedModel, hidden: Tensor, targets: Sequence[Targets]
) -> list[npt.NDArray[np.float64]]:
    """Log-probabilities of each target's tokens; a state that several share is read once.

    Args:
        model: The model that made the hidden states.
        hidden: Shape (states, width).
        targets: Any number but 0.
    """
    states = torch.tensor([place for target in targets for place in target.states]).long()
    tokens = torch.tensor([token for target in targets for token in target.tokens]).long()
    used, places = states.unique(return_inverse=True)
    device = hidden.device
    values = token_log_probs(model, hidden[used.to(device)], places.to(device), tokens.to(device))
    heap.trim_if_grown()
    counts = [len(target.tokens) for target in targets]
    return np.split(values.cpu().double().numpy(), np.cumsum(counts)[:-1])


def token_log_probs(
    model: PreTrainedModel,
    hidden: Tensor,
    states: Tensor,
    tokens: Tensor,
    temperature: float = 1.0,
) -> Tensor:
    """Log-probability of `tokens[k]` after the state `hidden[states[k]]`; differentiable.

    Args:
        model: The model that made the hidden states.
        hidden: Shape (states, width).
        states: Places in `hidden`, shape (k,).
        tokens: Token ids, shape (k,).
        temperature: What logits are divided by.

    Returns:
        Natural logarithms, float32, shape (k,).
    """
    vocabulary = len(model.get_output_embeddings().weight)
    rows, words = _CPU_STATES, _CPU_WORDS
    if hidden.device.type != "cpu":
        rows, words = max(1, _LOGITS // vocabulary), vocabulary
    edges = [*range(0, vocabulary, words), vocabulary]
    logits = _output_layer(model, words, temperature)
    result = hidden.new_zeros(len(tokens), dtype=torch.float32)
    for start in range(0, len(hidden), rows):
        inside = ((states >= start) & (states < start + rows)).nonzero().squeeze(-1)
        some = hidden[start : start + rows]
        found = _picked(logits(some), len(some), edges, states[inside] - start, tokens[inside])
        result = result.index_copy(0, inside, found)
    return result


def _picked(
    blocks: Iterable[Tensor], rows: int, edges: Sequence[int], states: Tensor, tokens: Tensor
) -> Tensor:
    """Log-probability of `tokens[k]` in row `states[k]` of logits, which come in blocks of words.

    Args:
        blocks: Each of shape (rows, words of the block).
        rows: See `blocks`.
        edges: Where in the vocabulary each block begins, and the vocabulary's end.
        states: Shape (k,).
        tokens: Shape (k,).
    """
    tokens, order = tokens.sort()
    cuts = torch.searchsorted(tokens, torch.tensor(edges, device=tokens.device)).tolist()
    # Room for all, first: what is kept between large blocks would part the heap.
    sums = torch.empty((len(edges) - 1, rows), device=tokens.device)
    picked = torch.empty(len(tokens), device=tokens.device)
    for k, (logits, (start, end)) in enumerate(zip(blocks, pairwise(cuts), strict=True)):
        sums[k] = logits.logsumexp(dim=-1)
        picked[start:end] = logits[states[order[start:end]], tokens[start:end] - edges[k]]
    values = picked - sums.logsumexp(dim=0)[states[order]]
    return torch.zeros_like(values).index_copy(0, order, values)


def check_output_layer(model: PreTrainedModel) -> None:
    """Makes sure that `token_log_probs` sees the logits that the model itself would return.

    Raises:
        ValueError: The model changes its logits after the output layer in a way unknown here.
    """
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        hidden = hidden_states(model, input_ids=ids, **extra)
        expected = model(input_ids=ids, **extra, use_cache=False).logits
        (ours,) = _output_layer(model, words=expected.shape[-1])(hidden)
    if not torch.allclose(ours, expected.float(), rtol=1e-2, atol=1e-2):
        raise ValueError(
            f"{model.config.model_type} models change their logits after the output layer in a "
            "way that ctrlreward does not know: use another base model, or report it"
        )


def keep_contiguous(model: PreTrainedModel) -> None:
    """Gives the output layer its input in one piece, from now on.

    PyTorch multiplies a slice such as `hidden[:, -1:]` by a frozen matrix row by row, which takes
    longer than all other work of a decoding step (measured on CPU, torch 2.13, bfloat16: 1.7 s
    against 9 ms for 32 rows).
    """
    model.get_output_embeddings().register_forward_pre_hook(
        lambda layer, args: (args[0].contiguous(),)
    )


def _output_layer(
    model: PreTrainedModel, words: int, temperature: float = 1.0
) -> Callable[[Tensor], Iterator[Tensor]]:
    """From hidden states to float32 logits in blocks of words, with what models do to them beyond
    the output layer: add a bias (BART, PEGASUS), scale (Cohere, Granite) or cap them (Gemma)."""
    layer, config = model.get_output_embeddings(), model.config
    # An adapter's model holds the buffer under a longer name.
    biases = (b for name, b in model.named_buffers() if name.endswith("final_logits_bias"))
    final = next(biases, None)
    scale = getattr(config, "logit_scale", None) or 1 / getattr(config, "logits_scaling", 1)
    cap = getattr(config, "final_logit_softcapping", None)
    # Split once: a slice for each block would have a gradient as large as all weights.
    weights = layer.weight.split(words)
    own = repeat(None) if layer.bias is None else layer.bias.split(words)
    added = repeat(None) if final is None else final.split(words, dim=-1)

    def logits(hidden: Tensor) -> Iterator[Tensor]:
        for weight, bias, more in zip(weights, own, added, strict=False):
            values = linear(hidden, weight, bias).float()
            if more is not None:
                values += more
            if scale != 1:
                values *= scale
            if cap is not None:
                values = cap * torch.tanh(values / cap)
            yield values if temperature == 1 else values / temperature

    return logits
