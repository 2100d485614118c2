"""Frozen models by family, their batches and weights, and the texts that they read."""

from ctrlreward.models.sources import SHORT_NAMES, resolve

__all__ = ["SHORT_NAMES", "resolve"]
