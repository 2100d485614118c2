"""A frozen model of transformers with its tokenizer: the base of families of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ctrlreward.models.batching import (
    Ids,
    logits_within,
    pad_rows,
    pass_cost,
    run_distinct,
    token_budget,
)
from ctrlreward.models.loading import AutoClass, check_vocabulary, load_frozen, load_tokenizer
from ctrlreward.models.tokenization import encode_texts, max_tokens, warn_unknown

Row = TypeVar("Row", bound=Any)


class FrozenModel:
    """Frozen model with its tokenizer; `batch_tokens` is the budget of a forward pass."""

    auto_class: ClassVar[AutoClass]

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.name = model
        self.model = self._load(model, device, dtype)
        self.tokenizer = self._load_tokenizer(model)
        check_vocabulary(model, self.tokenizer, self.model, reads_padding=False)
        declared = getattr(self.model.config.get_text_config(), "pad_token_id", None)
        embeddings: Any = self.model.get_input_embeddings()
        self.declared_padding = declared if declared in range(len(embeddings.weight)) else None
        # Texts are read once: keys and values of all layers would only take memory.
        self.model.config.get_text_config().use_cache = False
        self.batch_tokens = token_budget(self.model, batch_tokens)
        self.padding = pass_cost(self.model, self.batch_tokens)
        self.block = logits_within(self.batch_tokens, self.model.device)
        self.max_tokens = max_tokens(self.tokenizer, self.model.config)
        self._prepare()

    def _load(self, model: str, device: str, dtype: str | None) -> PreTrainedModel:
        return load_frozen(self.auto_class, model, device, dtype)

    def _load_tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        return load_tokenizer(model)

    def _prepare(self) -> None:
        """Check the model, and set further attributes of its family."""

    def padding_id(self, rows: Iterable[Ids]) -> int:
        """Return the model's declared padding token; without one, a token that ends no row.

        Decoders with a classification head pool the last token that is not the one in their config,
        which may differ from the tokenizer's.
        """
        if self.declared_padding is not None:
            return self.declared_padding
        ends = {row[-1] for row in rows if row}
        unused = next(i for i in range(len(ends) + 1) if i not in ends)
        self.model.config.get_text_config().pad_token_id = unused
        return unused

    @cached_property
    def text_padding(self) -> float:
        """Tokens of padding in a pass; 0 for a model that reads padding (ConvBERT, FNet, XLNet)."""
        row = tuple(self.tokenizer("a").input_ids) or (0,)
        ids, mask = pad_rows([row, row * 4], self.padding_id([row]), self.model.device)
        with torch.inference_mode():
            padded, alone = (
                self.model(input_ids=ids[:1, :end], attention_mask=mask[:1, :end])[0].float()
                for end in (None, len(row))
            )
        difference = padded[:, : len(row)] - alone[:, : len(row)]
        # Rounding errors are far smaller than half of the digits; a reward may be about 0.
        most = torch.finfo(self.model.dtype).eps ** 0.5 * (1 + alone.norm())
        return self.padding if difference.norm() < most else 0.0

    def read_texts(
        self,
        texts: Sequence[str],
        read: Callable[[Any, Tensor], list[Row]],
        rows: list[Ids] | None = None,
    ) -> list[Row]:
        """Return the result of `read` for each text; equal texts are read once.

        `read` gets the model's output and the attention mask, and returns a result per row.
        The vector of a text without a known token is NaN. `rows` are the tokens of the texts, if
        they are known.
        """

        def forward(rows: list[Ids]) -> list[Row]:
            ids, mask = pad_rows(rows, self.padding_id(rows), self.model.device)
            return read(self.model(input_ids=ids, attention_mask=mask), mask)

        if rows is None:
            rows = encode_texts(self.tokenizer, texts, self.max_tokens)
        unread = warn_unknown(self.tokenizer, texts, rows)
        found = run_distinct(rows, self.batch_tokens, forward, self.text_padding)
        for i in unread:
            if np.ndim(found[i]) == 1:  # of the text, not of its tokens
                found[i] = found[i] * np.nan
        return found
