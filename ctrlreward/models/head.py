"""From hidden states to the log-probabilities of chosen tokens, without logits for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Logits in one chunk: 16 Mi values are 64 MiB in float32.
_CHUNK_LOGITS = 2**24


def hidden_states(model: PreTrainedModel, **inputs: Any) -> Tensor:
    """What reaches the model's output layer, shape (rows, tokens, width).

    The layer itself gets a single token, so that no logits over the whole vocabulary arise.
    """
    return _forward(model, **inputs)[0]


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
    size = max(1, _CHUNK_LOGITS // model.get_output_embeddings().weight.shape[0])
    result = hidden.new_zeros(len(tokens), dtype=torch.float32)
    for start in range(0, len(hidden), size):
        chunk = _logits(model, hidden[start : start + size])
        if temperature != 1:
            chunk = chunk / temperature
        inside = ((states >= start) & (states < start + size)).nonzero().squeeze(-1)
        rows = states[inside] - start
        picked = chunk[rows, tokens[inside]] - chunk.logsumexp(dim=-1)[rows]
        result = result.index_copy(0, inside, picked)
    return result


def check_output_layer(model: PreTrainedModel) -> None:
    """Makes sure that `token_log_probs` sees the logits that the model itself would return.

    Raises:
        ValueError: The model changes its logits after the output layer in a way unknown here.
    """
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        hidden, expected = _forward(model, input_ids=ids, **extra)
        ours = _logits(model, hidden[:1, :1])
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


def _forward(model: PreTrainedModel, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Hidden states of all tokens, and the model's own logits of the very first."""
    kept: list[Tensor] = []

    def keep(layer: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        kept.append(args[0])
        return (args[0][:1, :1],)

    hook = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        outputs = model(**inputs, use_cache=False)
    finally:
        hook.remove()
    return kept[0], outputs.logits


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Float32 logits, with what models do to them beyond the output layer: add a bias (BART,
    PEGASUS), scale (Cohere, Granite) or cap them (Gemma)."""
    values: Tensor = model.get_output_embeddings()(hidden).float()
    # An adapter's model holds the buffer under a longer name.
    biases = (b for name, b in model.named_buffers() if name.endswith("final_logits_bias"))
    bias = next(biases, None)
    if bias is not None:
        values = values + bias
    config = model.config
    scale = getattr(config, "logit_scale", None) or 1 / getattr(config, "logits_scaling", 1)
    if scale != 1:
        values = values * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return values if cap is None else cap * torch.tanh(values / cap)
