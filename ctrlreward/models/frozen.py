"""A frozen model of transformers with its tokenizer: the base of families of models."""

from __future__ import annotations

from typing import ClassVar

from ctrlreward.engine.batching import token_budget
from ctrlreward.models.tokenization import max_tokens
from ctrlreward.weights.loading import AutoClass, load_frozen, load_tokenizer


class FrozenModel:
    """Frozen model with its tokenizer.

    Args:
        model: Local folder, hub id or short name.
        device: Device of the model.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Attributes:
        name: Name of the model.
        model: The model.
        tokenizer: Its tokenizer.
        max_tokens: Longest input in tokens, special tokens included.

    Raises:
        ValueError: The model is of another kind, or its checkpoint lacks weights.
        OSError: The hub cannot be reached.
    """

    auto_class: ClassVar[AutoClass]

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.name = model
        self.model = load_frozen(self.auto_class, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = token_budget(self.model, batch_tokens)
        self.max_tokens = max_tokens(self.tokenizer, self.model.config)
        self._prepare()

    def _prepare(self) -> None:
        """Check the model, and set what else its family needs."""
