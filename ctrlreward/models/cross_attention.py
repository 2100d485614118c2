"""Cross-attention whose keys and values are the source itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, einsum, nn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Measured on two cores with 68 tokens of source, seconds over those of the layer itself: width 256
# with 4 heads 0.2 for one token, 0.5 for 8, 1.3 for 32; width 1024 with 16 heads 0.1, 0.5, 2.3.
_FEW_TOKENS = 8


def attend_to_sources(model: PreTrainedModel) -> None:
    """Has short rows of BART's and PEGASUS' decoders read their sources by `SourceAttention`.

    T5's layers are built in another way and stay as they are.
    """
    if model.config._attn_implementation != "sdpa":  # others have masks of other kinds
        return
    for layer in list(model.modules()):
        own = getattr(layer, "encoder_attn", None)
        if isinstance(own, nn.Module):
            layer.encoder_attn = SourceAttention(own)


class SourceAttention(nn.Module):
    """A decoder's attention to its source, whose tokens need no keys and values of their own.

    A query q meets the key of a source's token h as q · (W h + b) = (Wᵀ q) · h + q · b, where the
    softmax drops the last term, which is the same for all tokens. The sum of the values,
    ∑ a (V h + c), is V (∑ a h) + c. So the matrices can be multiplied by the few tokens of a row,
    such as the word of a verbalizer, instead of by its whole source: that is a seventh of the
    encoder's and the decoder's multiplications, where both have as many layers.

    Args:
        layer: The model's own attention, with `q_proj`, `k_proj`, `v_proj` and `out_proj`, which
            rows of more tokens, and those with a cache, go through.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the layer's own, see transformers; of its options none changes what is scored."""
        _, tokens, width = hidden_states.shape
        layer, heads = self.layer, self.layer.num_heads
        if tokens > _FEW_TOKENS or past_key_values is not None:
            output: tuple[Tensor, Tensor | None] = layer(
                hidden_states,
                key_value_states=key_value_states,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **options,
            )
            return output
        keys, values = (
            projection.weight.view(heads, -1, width) for projection in (layer.k_proj, layer.v_proj)
        )
        asked = layer.q_proj(hidden_states).unflatten(-1, (heads, -1))
        # The heads' queries side by side, as of one head: they all read the same source.
        queries = einsum("rthd,hdw->rhtw", asked, keys).flatten(1, 2).unsqueeze(1)
        if attention_mask is not None:
            attention_mask = attention_mask.expand(-1, heads, tokens, -1).flatten(1, 2).unsqueeze(1)
        source = key_value_states.unsqueeze(1)
        read = scaled_dot_product_attention(
            queries, source, source, attention_mask, scale=layer.scaling
        )
        found = einsum("rhtw,hdw->rthd", read.squeeze(1).unflatten(1, (heads, -1)), values)
        return layer.out_proj(found.flatten(2) + layer.v_proj.bias), None
