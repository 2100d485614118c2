"""Reward models: sequence classifiers whose only output is the reward of a text."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ctrlreward.models.completeness import model_named
from ctrlreward.models.dtypes import pick_dtype
from ctrlreward.models.frozen import FrozenModel
from ctrlreward.models.loading import freeze, load_config, load_tokenizer, load_weights
from ctrlreward.models.rendering import Answer, Side, encode

Rewards = npt.NDArray[np.float64]

_CLASS = "AutoModelForSequenceClassification"

_CONFIG = "adapter_config.json"  # of peft's `save_pretrained`


class RewardHead(FrozenModel):
    """Frozen sequence classifier with one output.

    Takes the arguments of `FrozenModel`; `model` may also be a folder of an adapter of peft, which
    is merged into the base model that it names.
    """

    auto_class = AutoModelForSequenceClassification

    def _load(self, model: str, device: str, dtype: str | None) -> PreTrainedModel:
        self.base = base_of(model)
        if self.base is None:
            _check_head(model)
            return super()._load(model, device, dtype)
        return load_adapted(model, self.base, device, dtype)

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

    def rewards(
        self,
        answers: Sequence[Answer],
        template: str | None = None,
        side: Side | None = None,
    ) -> Rewards:
        """Return the reward of each answer, float64 of shape (answers,).

        See `rendering.encode` for template and side. NaN for a text without a token that the model
        knows, which `name` names in a warning.
        """
        rows = encode(self.tokenizer, answers, template, side, self.max_tokens, self.name)

        def read(output: Any, mask: Tensor) -> list[Rewards]:
            return list(output.logits.cpu().double().numpy())

        plain = [answer.completion for answer in answers]
        return np.array(self.read_texts(plain, read, rows), dtype=np.float64).reshape(-1)


def _check_head(model: str) -> None:
    """Raise unless a model has one output, by a head of transformers."""
    config: Any = load_config(model)
    if _CLASS in (getattr(config, "auto_map", None) or {}):
        raise ValueError(f"model = {model!r} has a head of its repository's code, never run here")
    if config.num_labels != 1:
        raise ValueError(
            f"model = {model!r} must be a reward model with one output, got {config.num_labels}. "
            "Use Accuracy for a classifier."
        )


def base_of(model: str) -> str | None:
    """Return the base model that a folder of an adapter names; None for another model."""
    folder = Path(model).expanduser()
    if not (folder / _CONFIG).is_file() or (folder / "config.json").is_file():
        return None
    base: str = json.loads((folder / _CONFIG).read_bytes())["base_model_name_or_path"]
    return base


def load_adapted(model: str, base: str, device: str, dtype: str | None) -> PreTrainedModel:
    """Load a base model with one output, and merge the adapter of a folder into it, in float32."""
    from peft import PeftConfig, PeftModel  # slow, and rarely used

    folder = Path(model).expanduser()
    if not (folder / "adapter_model.safetensors").is_file():
        raise ValueError(f"model = {model!r} is an adapter without adapter_model.safetensors")
    config = load_config(base)
    config.num_labels = 1
    head = PeftConfig.from_pretrained(str(folder)).modules_to_save or ()
    loaded = load_weights(
        AutoModelForSequenceClassification, base, config, torch.float32, supplied=head
    )
    with model_named(model), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*missing adapter keys")
        adapted: Any = PeftModel.from_pretrained(loaded, folder)
    return freeze(adapted.merge_and_unload().to(pick_dtype(dtype, device)), device)
