"""Weights: short names, wheels, the cache, safetensors, GGUF and dtypes."""

from ctrlreward.weights.sources import SHORT_NAMES, resolve

__all__ = ["SHORT_NAMES", "resolve"]
