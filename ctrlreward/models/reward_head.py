"""Reward models: sequence classifiers whose outputs are ratings of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.rendering import Answer, Side, encode
from ctrlreward.weights.adapted import adapted_config, base_of, load_adapted
from ctrlreward.weights.loading import load_config, load_tokenizer, remote_code

Ratings = npt.NDArray[np.float64]

REWARD = "reward"
_CLASS = "AutoModelForSequenceClassification"


class RewardHead(FrozenModel):
    """Frozen sequence classifier with one output, or with several ratings, named by `outputs`.

    Takes the arguments of `FrozenModel`; `model` may also be a folder of an adapter of peft, which
    is merged into the base model that it names.
    """

    auto_class = AutoModelForSequenceClassification

    def _load(self, model: str, device: str, dtype: str | None) -> PreTrainedModel:
        self.outputs = output_names(model)
        self.base = base_of(model)
        if self.base is None:
            return super()._load(model, device, dtype)
        if self.quantization is not None:
            raise ValueError(
                f"quantization must be None for an adapter, got {self.quantization!r}: merge it "
                "into its base model by peft's merge_and_unload, and pass the merged folder"
            )
        return load_adapted(self.auto_class, model, self.base, device, dtype)

    def _load_tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        try:
            return load_tokenizer(model)
        except ValueError:
            if self.base is None:
                raise
            return load_tokenizer(self.base)  # the adapter was saved without a tokenizer

    def _prepare(self) -> None:
        if self.base is not None:  # TRL's `RewardTrainer` sets it so, and an adapter has no config
            self.declared_padding = self.tokenizer.pad_token_id
            self.model.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id

    def ratings(
        self,
        answers: Sequence[Answer],
        template: str | None = None,
        side: Side | None = None,
        name: Callable[[int], str] = "texts[{}]".format,
    ) -> Ratings:
        """Return the outputs for each answer, float64 of shape (answers, outputs).

        See `rendering.encode` for template and side. NaN for a text without a token that the model
        knows, which `name` names in a warning.
        """
        rows = encode(self.tokenizer, answers, template, side, self.max_tokens, self.name)

        def read(output: Any, mask: Tensor) -> list[Ratings]:
            return list(output.logits.cpu().double().numpy())

        plain = [answer.completion for answer in answers]
        values = self.read_texts(plain, name, read, rows)
        return np.array(values, dtype=np.float64).reshape(-1, len(self.outputs))


def output_names(model: str) -> tuple[str, ...]:
    """Return the names of a reward model's outputs, from its config; `reward` if it has one."""
    base = base_of(model)
    config: Any = load_config(model) if base is None else adapted_config(model, base)
    if _CLASS in (getattr(config, "auto_map", None) or {}):
        raise ValueError(remote_code(model))
    count = config.num_labels
    if count == 1:
        return (REWARD,)
    if getattr(config, "problem_type", None) != "regression":
        kind = next(iter(config.architectures or ()), config.model_type)
        if "SequenceClassification" not in kind:
            raise ValueError(
                f"model = {model!r} is a {kind} without a head of one output, must be a reward "
                "model, such as TRL's RewardTrainer trains"
            )
        raise ValueError(
            f"model = {model!r} is a classifier with {count} labels, must have one output, or "
            "problem_type 'regression' in its config.json. Use Accuracy for a classifier."
        )
    names = tuple(str(config.id2label[i]) for i in range(count))
    if len(set(names)) < count:
        raise ValueError(
            f"model = {model!r} has outputs of one name in id2label of its config.json, must be "
            f"different, got {', '.join(names)}"
        )
    return names
