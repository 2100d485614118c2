"""Frozen models, configurations and tokenizers from resolved weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from ctrlreward.arguments import did_you_mean
from ctrlreward.processor.onednn import adapt
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.sources import SHORT_NAMES, VECTOR_NAMES, resolve


class AutoClass(Protocol):
    """A class with `from_pretrained`, such as `AutoModelForCausalLM`."""

    def from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model of a folder or hub id."""


class TrainedHead(NamedTuple):
    """An `AutoClass` that refuses models without trained weights for their head.

    transformers alone would initialise such a head at random, with a warning.

    Attributes:
        auto_class: The class of the head, such as `AutoModelForSequenceClassification`.
        kind: Name of such a model in the error.
    """

    auto_class: AutoClass
    kind: str

    def from_pretrained(self, *args: Any, **kwargs: Any) -> PreTrainedModel:
        """Load a model as `auto_class` does.

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


def load_config(model: str) -> PretrainedConfig:
    """Load the configuration of a model, without its weights.

    Args:
        model: A name that `resolve` takes.

    Raises:
        ValueError: See `resolve`.
        OSError: The hub cannot be reached.
    """
    location = resolve(model)
    with _hub_errors(model, location):
        return AutoConfig.from_pretrained(location, trust_remote_code=False)


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    A tokenizer without a padding token pads with its end token, which the attention mask hides.

    Args:
        model: A name that `resolve` takes, or a folder that holds only a tokenizer.

    Raises:
        ValueError: See `resolve`.
        OSError: The hub cannot be reached, or the folder has no tokenizer.
    """
    folder = Path(model).expanduser()
    plain = folder.is_dir() and not any(folder.glob("*.gguf"))
    location = str(folder) if plain else resolve(model)
    with _hub_errors(model, location):
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_frozen(
    auto_class: AutoClass, model: str, device: str = "cpu", dtype: str | None = None
) -> PreTrainedModel:
    """Load a pretrained model in evaluation mode, without gradients, on its device.

    Only safetensors are read, and no code from a model's repository is run.

    Args:
        auto_class: The head to load: `AutoModel`, `AutoModelForCausalLM`, …
        model: A name that `resolve` takes.
        device: Device name as in torch.
        dtype: As in `pick_dtype`.

    Raises:
        ValueError: See `resolve` and `pick_dtype`.
        OSError: The hub cannot be reached, or the repository has no safetensors.
    """
    location = resolve(model)
    torch_dtype = pick_dtype(dtype, device)
    with _hub_errors(model, location), _no_progress_bar(location):
        loaded = auto_class.from_pretrained(
            location, use_safetensors=True, trust_remote_code=False, dtype=torch_dtype
        )
    frozen: PreTrainedModel = loaded.eval().requires_grad_(False).to(torch.device(device))
    adapt(frozen)
    return frozen


@contextlib.contextmanager
def _hub_errors(model: str, location: str) -> Iterator[None]:
    """Turn a failure to reach the hub into an error that names the model and the alternatives."""
    try:
        yield
    except OSError as error:
        if Path(location).is_dir():
            raise
        hint = did_you_mean(model, [*SHORT_NAMES, *VECTOR_NAMES])
        raise OSError(
            f"model = {model!r} could not be loaded as a Hugging Face id "
            f"({str(error).splitlines()[0]}): give a local folder, or one of the built-in names "
            f"{', '.join(SHORT_NAMES)}{hint}"
        ) from error


@contextlib.contextmanager
def _no_progress_bar(location: str) -> Iterator[None]:
    """Hide the progress bar of a local folder, which loads in half a second."""
    hide = transformers_logging.is_progress_bar_enabled() and Path(location).is_dir()
    if hide:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            transformers_logging.enable_progress_bar()
