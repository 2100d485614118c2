"""Classifiers: the probability of each label, given a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from transformers import AutoModelForSequenceClassification

from ctrlreward.engine.batching import Ids, pad_rows, run_distinct, token_budget
from ctrlreward.models.text_cnn import MODEL_TYPE, TextCNNClassifier, read_config
from ctrlreward.models.tokenization import encode_texts, max_tokens
from ctrlreward.samples import shortened
from ctrlreward.weights.loading import TrainedHead, load_frozen, load_tokenizer

Probabilities = npt.NDArray[np.float64]

_HEAD = TrainedHead(AutoModelForSequenceClassification, "sequence classifier")


class LabelProbabilities(Protocol):
    """Whatever gives labels probabilities: a `Classifier`, a `CTRLEval`, a user's own."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it knows, one a column."""

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Float64, shape (texts, labels); NaN for a text that has none."""


class Classifier:
    """A frozen sequence classifier that decides for one of its labels.

    Args:
        model: Local folder, hub id or short name.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.
        labels: Names for the outputs in their order; None takes the model's own (`id2label`).

    Attributes:
        labels: The labels, one a column of `probabilities`.

    Raises:
        ValueError: The model has no trained classification head, or labels and outputs are not
            equally many.
    """

    def __init__(
        self,
        model: str,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.name = model
        self.model = load_frozen(_HEAD, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = token_budget(self.model, batch_tokens)
        self.labels = _labels(model, self.model.config, labels)
        self.max_tokens = max_tokens(self.tokenizer, self.model.config)
        if self.model.config.pad_token_id is None:  # decoders look for the last token before it
            self.model.config.pad_token_id = self.tokenizer.pad_token_id

    def probabilities(self, texts: Sequence[str]) -> Probabilities:
        """Softmax over the outputs, float64, shape (texts, labels), in the given order.

        Longer texts than the model reads are cut, with a warning.
        """

        def forward(rows: list[Ids]) -> list[Probabilities]:
            ids, mask = pad_rows(rows, self.tokenizer.pad_token_id or 0, self.model.device)
            logits = self.model(input_ids=ids, attention_mask=mask).logits
            return list(logits.cpu().double().softmax(dim=-1).numpy())

        rows = encode_texts(self.tokenizer, texts, self.max_tokens, lambda i: shortened(texts[i]))
        description = f"{self.name}: {len(rows)} texts"
        values = run_distinct(rows, self.batch_tokens, forward, description)
        return np.array(values, dtype=np.float64).reshape(-1, len(self.labels))


def load_classifier(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> LabelProbabilities:
    """A frozen classifier, of the kind that its `config.json` names as `model_type`.

    Args:
        model: Folder that the text_cnn recipe wrote, or what `Classifier` takes.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Raises:
        ValueError: It can't be loaded; see the two classes.
        OSError: A hub id can't be reached.
    """
    config = Path(model).expanduser() / "config.json"
    if config.is_file() and read_config(config).get("model_type") == MODEL_TYPE:
        return TextCNNClassifier(model, device, dtype, batch_tokens)
    return Classifier(model, device, dtype, batch_tokens)


def _labels(name: str, config: Any, given: Sequence[str] | None) -> tuple[str, ...]:
    outputs = config.num_labels
    if outputs < 2:
        raise ValueError(
            f"model = {name!r} has {outputs} output, which is a regression: "
            "give a classifier with 2 labels or more"
        )
    labels = tuple(given or (config.id2label[i] for i in range(outputs)))
    if len(labels) != outputs:
        raise ValueError(
            f"labels = {list(labels)} names {len(labels)} labels and model = {name!r} has "
            f"{outputs} outputs: give one name per output, in their order"
        )
    return labels
