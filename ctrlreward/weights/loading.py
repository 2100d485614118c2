"""Frozen models, configurations and tokenizers from resolved weights."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from huggingface_hub.errors import StrictDataclassError as Misfit
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from ctrlreward.arguments import did_you_mean
from ctrlreward.weights.completeness import check_complete, check_finite, damage_named
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.quantization import Quantization, quantization_config
from ctrlreward.weights.sources import SHORT_NAMES, VECTOR_NAMES, resolve

AutoClass: TypeAlias = Any  # with `from_pretrained`, such as `AutoModelForCausalLM`

# Kind of model of an `AutoClass` in errors.
_KINDS: Mapping[object, str] = {
    AutoModel: "an encoder",
    AutoModelForCausalLM: "a decoder-only language model",
    AutoModelForSeq2SeqLM: "an encoder-decoder",
    AutoModelForSequenceClassification: "a sequence classifier or a regression",
    AutoModelForTokenClassification: "a token classifier",
}

# Configurations of an `AutoClass`.
_MAPPINGS: Mapping[object, Container[object]] = {
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForSeq2SeqLM: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModelForSequenceClassification: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForTokenClassification: MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}

# Parts that a checkpoint may lack: the pooler of an `AutoModel` is the input of a head.
_UNUSED: Mapping[object, re.Pattern[str]] = {AutoModel: re.compile(r"(^|\.)pooler\.")}

# One of them makes a tokenizer: of tokenizers, SentencePiece, BPE and WordPiece.
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("vocab.json", "vocab.txt"),
)


def load_config(model: str) -> PretrainedConfig:
    """Load the configuration of a model, without its weights."""
    location = resolve(model)
    with _hub(model, location):
        try:
            return AutoConfig.from_pretrained(location, trust_remote_code=False)
        except ValueError as error:
            values, _ = PretrainedConfig.get_config_dict(location)
            if "auto_map" not in values:
                raise
            raise ValueError(remote_code(model)) from error


def remote_code(model: str) -> str:
    """Return the message for a model whose network is code of its repository."""
    return (
        f"model = {model!r} is defined by Python code in its repository (auto_map in its "
        "config.json), which is never run here. Use a model of a class of transformers, or load it "
        "yourself and pass a function that scores texts by it (FunctionScorer)."
    )


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or of a folder with only a tokenizer.

    Without a padding token it pads with its end token, which the attention mask hides.
    """
    folder = Path(model).expanduser()
    plain = folder.is_dir() and not any(folder.glob("*.gguf"))
    location = str(folder) if plain else resolve(model)
    saved = Path(location)
    if saved.is_dir() and not any((saved / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"model = {model!r} has no tokenizer.json. Save the tokenizer into the folder with "
            f"AutoTokenizer.from_pretrained(...).save_pretrained({str(saved)!r})."
        )
    with _hub(model, location):
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_frozen(
    auto_class: AutoClass,
    model: str,
    device: str = "cpu",
    dtype: str | None = None,
    quantization: Quantization | None = None,
) -> PreTrainedModel:
    """Load a pretrained model for inference on its device: safetensors, no remote code."""
    torch_dtype = pick_dtype(dtype, device)
    quantized = quantization_config(quantization, torch_dtype, "quantization")
    plain = load_config(model)
    return freeze(load_weights(auto_class, model, plain, torch_dtype, quantized, device), device)


def freeze(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Prepare a loaded model for inference on a device."""
    frozen = model.eval().requires_grad_(False)
    if getattr(frozen, "hf_quantizer", None) is None:
        frozen = frozen.to(torch.device(device))
    return frozen


def load_weights(
    auto_class: AutoClass,
    model: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    quantization_config: BitsAndBytesConfig | None = None,
    device: str = "cpu",
    supplied: Container[str] = (),
) -> PreTrainedModel:
    """Load a pretrained model with all of its weights, but the `supplied` ones, by its checkpoint.

    Only quantized weights are loaded on the device.
    """
    _check_kind(auto_class, model, config)
    location = resolve(model)
    with _hub(model, location), _quiet_loading(location):
        loaded, report = auto_class.from_pretrained(
            location,
            config=config,
            dtype=dtype,
            quantization_config=quantization_config,
            # Quantized weights cannot be moved to another kind of device later.
            device_map=None if quantization_config is None else {"": device},
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and an error below
        )
    kind = _KINDS.get(auto_class, "a model")
    report["missing_keys"] = [key for key in report["missing_keys"] if key not in supplied]
    check_complete(model, loaded, report, kind, _UNUSED.get(auto_class))
    check_finite(model, loaded)
    return cast(PreTrainedModel, loaded)


def _check_kind(auto_class: AutoClass, model: str, config: PretrainedConfig) -> None:
    """Raise if the class would read a model of another kind, such as an encoder as a decoder."""
    is_causal, known = auto_class is AutoModelForCausalLM, _MAPPINGS.get(auto_class)
    # These have a causal head in transformers, for which they are not trained.
    is_encoder = (
        is_causal
        and type(config) in MODEL_FOR_MASKED_LM_MAPPING
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "causal", False)
    )
    if config.is_encoder_decoder and is_causal:
        found = "an encoder-decoder"
    elif is_encoder:
        found = "an encoder, whose tokens read the ones after them"
    elif known is not None and type(config) not in known:
        found = f"of type {config.model_type}"
    else:
        return
    raise ValueError(f"model = {model!r} is {found}, must be {_KINDS[auto_class]}")


@contextlib.contextmanager
def _hub(model: str, location: str) -> Iterator[None]:
    """Name the model in errors of loading it."""
    try:
        with damage_named(Path(location), f"model = {model!r}"):
            yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, Misfit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(
            f"model = {model!r} can't be built from its config.json ({reason}). Save it again."
        ) from error
    except OSError as error:
        if Path(location).is_dir():
            raise
        hint = did_you_mean(model, [*SHORT_NAMES, *VECTOR_NAMES])
        raise OSError(
            f"model = {model!r} could not be loaded as a Hugging Face id "
            f"({str(error).splitlines()[0]}). Use a local folder, or one of the built-in names "
            f"{', '.join(SHORT_NAMES)}{hint}"
        ) from error


@contextlib.contextmanager
def _quiet_loading(location: str) -> Iterator[None]:
    """Hide transformers' report on loaded weights, which `check_complete` replaces, and bars."""
    hide = transformers_logging.is_progress_bar_enabled() and Path(location).is_dir()
    if hide:
        transformers_logging.disable_progress_bar()
    logger = logging.getLogger("transformers.modeling_utils")

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in str(record.msg)

    logger.addFilter(is_no_report)
    try:
        yield
    finally:
        logger.removeFilter(is_no_report)
        if hide:
            transformers_logging.enable_progress_bar()
