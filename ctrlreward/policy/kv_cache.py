"""Key-value cache with room for the tokens to come."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _RoomyLayer(DynamicLayer):
    """Cache layer that writes new keys and values behind the old ones.

    `DynamicLayer` copies all of them at each token.

    Args:
        layer: Layer with the keys and values of the prompts.
        tokens: Largest number of tokens that will be added.
    """

    def __init__(self, layer: DynamicLayer, tokens: int) -> None:
        super().__init__()
        assert layer.keys is not None
        assert layer.values is not None
        self.lazy_initialization(layer.keys, layer.values)
        self.keys, self.values = layer.keys, layer.values
        self.room = (_longer(layer.keys, tokens), _longer(layer.values, tokens))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add a token per row, and return all keys and values."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        for room, states in zip(self.room, (key_states, value_states), strict=True):
            room[:, :, start:end] = states
        self.keys, self.values = (room[:, :, :end] for room in self.room)
        return self.keys, self.values


def _longer(states: Tensor, tokens: int) -> Tensor:
    """Return a copy with room for more tokens, shape (rows, heads, length + tokens, width).

    In memory, the heads of a token are neighbours: a new token is one block per row.
    """
    rows, heads, length, width = states.shape
    longer = states.new_empty(rows, length + tokens, heads, width).transpose(1, 2)
    longer[:, :, :length] = states
    return longer


def make_room(cache: Any, tokens: int) -> None:
    """Give the layers of a cache room for more tokens, in place; caches of other kinds stay.

    Args:
        cache: Cache after the prompts were read.
        tokens: Largest number of tokens that will be added.
    """
    if isinstance(cache, DynamicCache):
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer and layer.get_seq_length():
                cache.layers[i] = _RoomyLayer(layer, tokens)
