"""Aligners that were trained to align: by token (CTC's D), and whole texts by regression (R)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ctrlreward.engine.batching import run_batched, token_budget, windows
from ctrlreward.models.aligner import TokenAlignment
from ctrlreward.models.pairs import EncodedPair, Pair, encode_pairs, pad_pairs, warn_of_cuts
from ctrlreward.models.tokenization import max_tokens
from ctrlreward.weights.loading import TrainedHead, load_frozen, load_tokenizer

Values = npt.NDArray[np.float64]

# The label of a token that b bears out, as the recipe writes it into a model's `id2label`.
ALIGNED = "aligned"


class TokenAligner:
    """The probability that a token of a is borne out by b, by a token classifier over both.

    The discriminative aligner D of Deng et al. (2021), https://arxiv.org/abs/2109.06379, sec.
    3.2. Values are 0 to 1, higher is better aligned. `ctrlreward.recipes.alignment` trains one.
    Tokens are the pieces of words that the model reads, each with a value of its own; the paper's
    package gives a whole word the mean of its pieces, so there a long word weighs no more.

    Args:
        model: Local folder or hub id of a token classifier of which one label is "aligned". Labels
            without names are refused: in the paper's own models the first of two means aligned,
            in others the second.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Raises:
        ValueError: The model has no trained head, or no label of that name.
    """

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        head = TrainedHead(AutoModelForTokenClassification, "token classifier")
        self.model = load_frozen(head, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = token_budget(self.model, batch_tokens)
        self._aligned = _aligned_label(model, self.model.config)

    def align(self, pairs: Sequence[Pair]) -> Iterator[TokenAlignment]:
        """For each pair (a, b) the probabilities of a's tokens, one pair after the other.

        Where both are longer than the model reads, b is cut, with a warning. Where a has no token
        there are no values; where b has none they are NaN.
        """

        def read(logits: Tensor, batch: list[EncodedPair]) -> list[Values]:
            # Not every device has float64.
            values = logits.float().cpu().double().softmax(dim=-1)[..., self._aligned].numpy()
            return [row[list(pair.places)] for row, pair in zip(values, batch, strict=True)]

        for pair, values in _run(self.model, self.tokenizer, self.batch_tokens, pairs, read):
            yield TokenAlignment(pair.spans, values if pair.has_b else np.full(len(values), np.nan))


class RegressionAligner:
    """How well a as a whole is borne out by b, by a regression over both.

    The regression aligner R of Deng et al. (2021), https://arxiv.org/abs/2109.06379, sec. 3.2.
    It estimates what D's labels would add up to, so a has one span with one value, which mean and
    sum leave as it is. Higher is better aligned; the unit is that of its training: about 0 to 1
    for the share of a's tokens that are aligned, 0 or more for their number.

    Args:
        model: Local folder or hub id of a sequence classifier with one output.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Raises:
        ValueError: The model has no trained head, or more outputs than one.
    """

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        head = TrainedHead(AutoModelForSequenceClassification, "regression of one output")
        self.model = load_frozen(head, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = token_budget(self.model, batch_tokens)
        if self.model.config.num_labels != 1:
            raise ValueError(
                f"model = {model!r} has {self.model.config.num_labels} outputs: "
                "give a regression, which has 1"
            )
        if self.model.config.pad_token_id is None:  # decoders look for the last token before it
            self.model.config.pad_token_id = self.tokenizer.pad_token_id

    def align(self, pairs: Sequence[Pair]) -> Iterator[TokenAlignment]:
        """For each pair (a, b) one span, the whole of a, and its value, one after the other.

        Where both are longer than the model reads, b is cut, with a warning. Where a has no token
        there is no span; where b has none the value is NaN.
        """

        def read(logits: Tensor, batch: list[EncodedPair]) -> list[Values]:
            return list(logits.float().cpu().double().numpy())

        found = _run(self.model, self.tokenizer, self.batch_tokens, pairs, read)
        for (a, _), (pair, value) in zip(pairs, found, strict=True):
            if pair.places:
                whole = value if pair.has_b else np.full(1, np.nan)
                yield TokenAlignment(((0, len(a)),), whole)
            else:
                yield TokenAlignment((), np.zeros(0))


def _run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch_tokens: int,
    pairs: Sequence[Pair],
    read: Callable[[Tensor, list[EncodedPair]], list[Values]],
) -> Iterator[tuple[EncodedPair, Values]]:
    """Each pair as it is read, and what `read` makes of its logits."""

    def forward(rows: list[EncodedPair], batch: list[int]) -> list[Values]:
        some = [rows[i] for i in batch]
        inputs = pad_pairs(some, tokenizer.pad_token_id or 0, model.device)
        return read(model(**inputs).logits, some)

    limit = max_tokens(tokenizer, model.config)
    for window in windows([a + b for a, b in pairs]):
        some = [pairs[i] for i in window]
        encoded = encode_pairs(tokenizer, some, limit)
        warn_of_cuts(some, encoded, limit)
        values = run_batched(
            [len(pair.ids) for pair in encoded],
            batch_tokens,
            partial(forward, encoded),
            f"{model.name_or_path}: {len(some)} pairs",
        )
        yield from zip(encoded, values, strict=True)


def _aligned_label(name: str, config: PretrainedConfig) -> int:
    labels = {int(place): str(label) for place, label in (config.id2label or {}).items()}
    for place, label in labels.items():
        if label.lower() == ALIGNED:
            return place
    raise ValueError(
        f"model = {name!r} has the labels {', '.join(labels.values())}: name the one that means "
        f"{ALIGNED!r} so in id2label of its config.json"
    )
