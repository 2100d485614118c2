"""Heads that were trained: a model without one is refused, not completed with random weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers import PreTrainedModel

from ctrlreward.models.weights import AutoClass


class TrainedHead(NamedTuple):
    """An `AutoClass` for `load_frozen` that loads no model whose head is missing.

    Attributes:
        auto_class: Which head: `AutoModelForSequenceClassification`, …
        kind: What a model with such a head is called.
    """

    auto_class: AutoClass
    kind: str

    def from_pretrained(self, *args: Any, **kwargs: Any) -> PreTrainedModel:
        """As that of `auto_class`.

        Raises:
            ValueError: Weights are missing; names them.
        """
        model: PreTrainedModel
        model, report = self.auto_class.from_pretrained(*args, **kwargs, output_loading_info=True)
        if report["missing_keys"]:
            raise ValueError(
                f"{args[0]} has no weights for {', '.join(sorted(report['missing_keys']))}: "
                f"give a model that was trained as a {self.kind}"
            )
        return model
