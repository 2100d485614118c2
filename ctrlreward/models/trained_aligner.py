"""Trained aligners of CTC: token classification (D) and regression over whole texts (R)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from ctrlreward.engine.batching import run_batched, windows
from ctrlreward.models.aligner import TokenAlignment
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.pairs import EncodedPair, Pair, encode_pairs, pad_pairs, warn_truncated_pairs

Values = npt.NDArray[np.float64]

# Label of a token that b supports, as the recipe writes it to `id2label`.
ALIGNED = "aligned"


class TokenAligner(FrozenModel):
    """Discriminative aligner: the probability that b supports each token of a.

    The aligner D of Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5, a token
    classifier over both texts. Values are in [0, 1]; higher is better aligned.
    `ctrlreward.recipes.papers.ctc` trains one. Each subword token has a value of its own; the
    released package has one per word, from the sum of its tokens' features, so that long words
    weigh no more than short ones.

    Its arguments are those of `FrozenModel`; the model is a token classifier with a label
    "aligned". Unnamed labels are refused: "aligned" is the first of two in the paper's models, the
    second in others.

    Raises:
        ValueError: The model has no trained head, or no label of that name.
    """

    auto_class = AutoModelForTokenClassification

    def _prepare(self) -> None:
        labels = {int(i): str(label) for i, label in (self.model.config.id2label or {}).items()}
        aligned = [i for i, label in labels.items() if label.lower() == ALIGNED]
        if not aligned:
            raise ValueError(
                f"model = {self.name!r} has the labels {', '.join(labels.values())}: rename the "
                f"one for aligned tokens to {ALIGNED!r} in id2label of its config.json"
            )
        self._aligned = aligned[0]

    def align(self, pairs: Sequence[Pair]) -> Iterator[TokenAlignment]:
        """Yield the probabilities of the tokens of a for each pair (a, b).

        A pair that exceeds the model's context loses the end of b, with a warning. If a has no
        token there are no values; if b has none they are NaN.
        """

        def read(logits: Tensor, batch: list[EncodedPair]) -> list[Values]:
            # float64 on the CPU: not every device has it.
            values = logits.float().cpu().double().softmax(dim=-1)[..., self._aligned].numpy()
            return [row[list(pair.places)] for row, pair in zip(values, batch, strict=True)]

        for pair, values in _run(self, pairs, read):
            yield TokenAlignment(pair.spans, values if pair.has_b else np.full(len(values), np.nan))


class RegressionAligner(FrozenModel):
    """Regression aligner: one value for how well b supports the whole of a.

    The aligner R of Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5. It estimates
    the aggregate of D's labels, so a has one span with one value, which mean and sum do not change.
    Higher is better aligned. The unit is that of its training: about 0 to 1 for the share of
    aligned tokens, 0 or more for their number.

    Its arguments are those of `FrozenModel`; the model is a sequence classifier with one output.

    Raises:
        ValueError: The model has no trained head, or more outputs than one.
    """

    auto_class = AutoModelForSequenceClassification

    def _prepare(self) -> None:
        if self.model.config.num_labels != 1:
            raise ValueError(
                f"model = {self.name!r} has {self.model.config.num_labels} outputs: "
                "give a regression model, which has 1"
            )

    def align(self, pairs: Sequence[Pair]) -> Iterator[TokenAlignment]:
        """Yield one span, the whole of a, and its value for each pair (a, b).

        A pair that exceeds the model's context loses the end of b, with a warning. If a has no
        token there is no span; if b has none the value is NaN.
        """

        def read(logits: Tensor, batch: list[EncodedPair]) -> list[Values]:
            return list(logits.float().cpu().double().numpy())

        results = _run(self, pairs, read)
        for (a, _), (pair, value) in zip(pairs, results, strict=True):
            if pair.places:
                whole = value if pair.has_b else np.full(1, np.nan)
                yield TokenAlignment(((0, len(a)),), whole)
            else:
                yield TokenAlignment((), np.zeros(0))


def _run(
    aligner: FrozenModel,
    pairs: Sequence[Pair],
    read: Callable[[Tensor, list[EncodedPair]], list[Values]],
) -> Iterator[tuple[EncodedPair, Values]]:
    """Yield each encoded pair with the result of `read` on its logits."""

    def forward(rows: list[EncodedPair], batch: list[int]) -> list[Values]:
        chosen = [rows[i] for i in batch]
        inputs = pad_pairs(chosen, aligner.tokenizer.pad_token_id or 0, aligner.model.device)
        return read(aligner.model(**inputs).logits, chosen)

    limit = aligner.max_tokens
    for window in windows([a + b for a, b in pairs]):
        chosen = [pairs[i] for i in window]
        encoded = encode_pairs(aligner.tokenizer, chosen, limit)
        warn_truncated_pairs(chosen, encoded, limit)
        values = run_batched(
            [len(pair.ids) for pair in encoded],
            aligner.batch_tokens,
            partial(forward, encoded),
            f"{aligner.name}: {len(chosen)} pairs",
        )
        yield from zip(encoded, values, strict=True)
