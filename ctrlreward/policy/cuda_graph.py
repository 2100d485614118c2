"""Decoding steps of a policy as a CUDA graph.

A decoding step of a small model is some thousand kernels of a few microseconds each, and the CPU
takes ten times as long to launch them. A graph launches all at once. It needs keys, values and mask
at fixed addresses, so the cache has the length of the longest text from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from ctrlreward.engine.output_layer import states_and_output

_logger = logging.getLogger(__name__)

_FEWEST_TOKENS = 8  # a graph costs as much as one token
_TOLERANCE = 0.02  # of the states' largest value; bfloat16 rounds by 0.004
# Classes of configurations of models whose first graph was right, or could not be recorded.
_checked: set[type] = set()
_not_captured: set[type] = set()
# A pool of memory is kept while a graph of it is, so the next graph takes the memory of the last.
_last: dict[int, torch.cuda.CUDAGraph] = {}


def has_fixed_steps(model: Any, cache: Cache, tokens: int, device: str) -> bool:
    """Return True if the steps on a type of device are the same kernels at fixed addresses."""
    return (
        device == "cuda"
        and tokens >= _FEWEST_TOKENS
        and not model.config.is_encoder_decoder
        and model.config._attn_implementation == "sdpa"  # takes a mask that is ready
        and all(type(layer) is DynamicLayer for layer in cache.layers)
        and not getattr(model, "is_quantized", False)
        and not torch.is_autocast_enabled("cuda")
        and len(getattr(model, "hf_device_map", None) or {}) < 2
        and not torch.distributed.is_initialized()  # sharded weights are gathered in each layer
        and type(model.config) not in _not_captured
    )


class FixedSteps:
    """Decoding steps with one memory for all of them, by a graph from the second step on.

    Args:
        model: Decoder-only `PreTrainedModel`, or a `PeftModel` on one.
        cache: Keys and values of the distinct prompts.
        rows: Row of the cache that each text continues, shape (n,).
        attention: 1 where a prompt is not padding, shape (n, length).
        position: Position of the last token of each prompt, shape (n, 1).
        tokens: Most new tokens.
    """

    def __init__(
        self,
        model: Any,
        cache: Cache,
        rows: Tensor,
        attention: Tensor,
        position: Tensor,
        tokens: int,
    ) -> None:
        count, start = attention.shape
        self.model, self.position = model, position.clone()
        self.token = torch.empty_like(self.position)
        self.slot = torch.full((1,), start, device=attention.device)
        # True where a token may be read, with the dimensions of heads and queries.
        self.seen = attention.new_zeros((count, 1, 1, start + tokens), dtype=torch.bool)
        self.seen[..., :start] = attention[:, None, None].bool()
        length = start + tokens
        self.cache = Cache(
            layers=[_FixedLayer(layer, rows, length, self.slot) for layer in cache.layers]
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.states: Tensor | None = None  # of the first step, then of the graph

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the states after a token of each row, (n, 1) → (n, width), until the next call."""
        self.token.copy_(tokens)
        self.position += 1
        self.seen.index_fill_(3, self.slot, True)
        if self.graph is None and self.states is not None:
            self._capture()
        if self.graph is None:  # the first step, which also loads the kernels
            self.states = self._step()
        else:
            self.graph.replay()
        self.slot += 1
        assert self.states is not None
        return self.states

    def _step(self) -> Tensor:
        hidden, _ = states_and_output(
            self.model,
            input_ids=self.token,
            position_ids=self.position,
            attention_mask=self.seen,
            past_key_values=self.cache,
            use_cache=True,
        )
        return hidden[:, 0]

    def _capture(self) -> None:
        """Record a step; where that fails, this and all later ones run without a graph."""
        kind = type(self.model.config)
        if kind in _not_captured:
            return
        try:
            graph, states = _record(self._step, self.token.device.index or 0)
        except RuntimeError as error:
            _not_captured.add(kind)
            _logger.warning("%s decodes without a CUDA graph: %s", kind.__name__, error)
            return
        if kind not in _checked:  # a step twice writes the same keys and values
            expected = self._step().float()
            graph.replay()
            apart = (states.float() - expected).abs().max() / expected.abs().max()
            if not apart <= _TOLERANCE:
                _not_captured.add(kind)
                _logger.warning(
                    "%s decodes without a CUDA graph, whose first states differ by %.2g",
                    *(kind.__name__, apart),
                )
                return
            _checked.add(kind)
        self.graph, self.states = graph, states


def _record(step: Callable[[], Tensor], index: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Return the graph of a step on a device, and the tensor that each replay fills."""
    stream, graph = _stream(index), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            # Other threads, such as a reward's, may allocate meanwhile.
            graph.capture_begin(pool=_pool(index), capture_error_mode="thread_local")
            try:
                states = step()
            finally:
                graph.capture_end()
    finally:
        torch.cuda.current_stream().wait_stream(stream)
    _last[index] = graph
    return graph, states


class _FixedLayer(CacheLayerMixin):
    """Keys and values of a layer, for texts of up to `length` tokens; `slot` is where one goes."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, layer: Any, rows: Tensor, length: int, slot: Tensor) -> None:
        super().__init__()
        self.slot, self.is_initialized = slot, True
        self.keys = self._longer(layer.keys, rows, length)
        self.values = self._longer(layer.values, rows, length)

    @staticmethod
    def _longer(read: Tensor, rows: Tensor, length: int) -> Tensor:
        whole = read.new_zeros((len(rows), read.shape[1], length, read.shape[3]))
        whole[:, :, : read.shape[2]] = read[rows]
        return whole

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        return self.get_max_length()

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


@cache
def _pool(index: int) -> Any:
    return torch.cuda.graph_pool_handle()


@cache
def _stream(index: int) -> torch.cuda.Stream:
    """Return one stream per device: memory that was freed in a stream is kept for that stream."""
    return torch.cuda.Stream(index)
