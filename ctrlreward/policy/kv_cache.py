"""Key-value cache with room for the tokens to come."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _RoomyLayer(DynamicLayer):
    """Cache layer that writes new keys and values behind the old ones.

    `DynamicLayer` copies all of them at each token.

    Attributes:
        room: Tensors that begin with the keys and the values.
    """

    room: tuple[Tensor, Tensor]

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


def make_room(cache: Any, tokens: int) -> None:
    """Give the layers of a cache room for more tokens, in place; caches of other kinds stay.

    Args:
        cache: Cache after the prompts were read.
        tokens: Largest number of tokens that will be added.
    """
    if not isinstance(cache, DynamicCache):
        return
    for layer in cache.layers:
        if type(layer) is not DynamicLayer or not layer.get_seq_length():
            continue
        room = []
        for states in (layer.keys, layer.values):
            rows, heads, length, width = states.shape
            room.append(states.new_empty(rows, heads, length + tokens, width))
            room[-1][:, :, :length] = states
        layer.__class__ = _RoomyLayer
        layer.room = tuple(room)
