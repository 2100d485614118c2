"""Frozen models, configurations and tokenizers from resolved weights."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from ctrlreward.files import read_json
from ctrlreward.models.completeness import check_complete, model_named
from ctrlreward.models.dtypes import pick_dtype
from ctrlreward.models.sources import resolve

AutoClass: TypeAlias = Any  # with `from_pretrained`, such as `AutoModelForCausalLM`

# One of them makes a tokenizer: of tokenizers, SentencePiece, BPE and WordPiece.
_TOKENIZERS = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt")


def load_config(model: str) -> PretrainedConfig:
    """Load the configuration of a model, without its weights."""
    with model_named(model):
        return AutoConfig.from_pretrained(resolve(model), trust_remote_code=False)


def side_file(model: str, name: str) -> Any:
    """Return the value of a JSON file beside the weights, of a folder or the hub; None without."""
    path = cached_file(resolve(model), name, _raise_exceptions_for_missing_entries=False)
    return read_json(path) if path else None


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or of a folder with only a tokenizer.

    It is a fast one. Without a padding token it pads with its end token, which the mask hides.
    """
    folder = Path(model).expanduser()
    is_plain = folder.is_dir() and not any(folder.glob("*.gguf"))
    location = str(folder) if is_plain else resolve(model)
    saved = Path(location)
    if saved.is_dir() and not any([*saved.glob(name)] for name in _TOKENIZERS):
        raise ValueError(f"model = {model!r} has no tokenizer.json, must have one")
    with model_named(model):
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise ValueError(f"model = {model!r} must have a fast tokenizer, of tokenizer.json")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_frozen(
    auto_class: AutoClass, model: str, device: str = "cpu", dtype: str | None = None
) -> PreTrainedModel:
    """Load a pretrained model for inference on its device: safetensors, no remote code."""
    loaded = load_weights(auto_class, model, load_config(model), pick_dtype(dtype, device))
    return freeze(loaded, device)


def freeze(model: PreTrainedModel, device: str) -> PreTrainedModel:
    """Prepare a loaded model for inference on a device."""
    frozen = model.eval().requires_grad_(False)
    is_quantized = getattr(frozen, "hf_quantizer", None) is not None  # as its checkpoint is
    return frozen if is_quantized else frozen.to(torch.device(device))


def load_weights(
    auto_class: AutoClass,
    model: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    supplied: Container[str] = (),
) -> PreTrainedModel:
    """Load a pretrained model by its checkpoint: all weights, but those of layers `supplied`."""
    if auto_class is AutoModelForCausalLM:
        _check_decoder(model, config)
    with model_named(model), _quiet_transformers():
        loaded, report = auto_class.from_pretrained(
            resolve(model),
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and an error below
        )
    # The pooler of a plain encoder is the input of a head, which nothing reads.
    unread = "pooler." if auto_class is AutoModel else "\0"
    report["missing_keys"] = [
        key
        for key in report["missing_keys"]
        if key.partition(".")[0] not in supplied and unread not in key
    ]
    check_complete(model, report)
    return cast(PreTrainedModel, loaded)


def check_vocabulary(
    model: str, tokenizer: PreTrainedTokenizerBase, loaded: nn.Module, reads_padding: bool
) -> None:
    """Raise if a tokenizer has tokens that the embeddings of its model lack.

    Special tokens that occur in no input may, such as the padding token of many chat models.
    """
    rows = len(cast(Any, loaded).get_input_embeddings().weight)
    roles = ["bos_token", "eos_token", "unk_token", "cls_token", "sep_token", "mask_token"]
    roles += ["pad_token"] * reads_padding
    unread = {*tokenizer.all_special_tokens} - {getattr(tokenizer, role) for role in roles}
    outside = [t for t, i in tokenizer.get_vocab().items() if i >= rows and t not in unread]
    if outside:
        raise ValueError(
            f"model = {model!r} must embed all tokens of its tokenizer, got {rows} rows, none of "
            f"{min(outside)!r}"
        )


def _check_decoder(model: str, config: PretrainedConfig) -> None:
    is_encoder = (
        type(config) in MODEL_FOR_MASKED_LM_MAPPING
        and not getattr(config, "is_decoder", False)
        and not getattr(config, "causal", False)
    )
    if is_encoder or config.is_encoder_decoder:
        raise ValueError(f"model = {model!r} must be decoder-only, got a {config.model_type}")


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Hide transformers' report on loaded weights, which `check_complete` replaces, and bars."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
