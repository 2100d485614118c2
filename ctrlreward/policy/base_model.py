"""The frozen base model of a policy: loading, quantisation, gradient checkpointing."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, Literal, TypeAlias

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BitsAndBytesConfig,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from ctrlreward.extras import import_extra
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.loading import load_config, load_weights

Quantization: TypeAlias = Literal["nf4", "int8"]


def load_base(
    model: str, dtype: str | None, quantization: Quantization | None, device: str
) -> PreTrainedModel:
    """Load a causal or encoder-decoder language model, without dropout and with plain generation.

    Args:
        model: Local folder, Hugging Face id or short name.
        dtype: As in `pick_dtype`; that of the computations if the weights are quantised.
        quantization: See `LoRA`.
        device: Device that the model will run on, as in torch. Quantised weights are loaded to it,
            others to the CPU.

    Raises:
        ValueError: An encoder-decoder does not define the token that its decoder starts with; or
            see `load_weights`.
        ImportError: bitsandbytes is needed and not installed.
    """
    torch_dtype = pick_dtype(dtype, device)
    config = _quantization_config(quantization, torch_dtype)
    plain = _without_dropout(load_config(model))
    auto_class = AutoModelForSeq2SeqLM if plain.is_encoder_decoder else AutoModelForCausalLM
    # int8 weights cannot be moved to another kind of device later.
    placement = None if config is None else {"": device}
    base = load_weights(auto_class, model, plain, torch_dtype, config, placement)
    base.generation_config = _plain_generation_config(model, base)
    if quantization is not None:
        _keep_in_training_mode(base)
    return base


def _quantization_config(
    quantization: Quantization | None, dtype: torch.dtype
) -> BitsAndBytesConfig | None:
    if quantization is None:
        return None
    import_extra("bitsandbytes", f"lora.quantization = {quantization!r}")
    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def _keep_in_training_mode(base: PreTrainedModel) -> None:
    """Make quantised layers compute the same in eval mode as in training mode.

    On the CPU, bitsandbytes' layers in eval mode round the activations of int8 layers, and pack the
    weights of nf4 layers, for good, into a format that has no gradients: training would learn
    nothing from the layers below, without an error.
    """
    kinds = import_module("bitsandbytes.nn")
    for layer in base.modules():
        if isinstance(layer, kinds.Linear4bit | kinds.Linear8bitLt):
            layer.train()
            layer.train = lambda mode=True, layer=layer: layer


def _without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """Set every rate of dropout, of layers too, and of jitter in a configuration to 0.

    Frozen weights need no regularisation, and the policy that learns has to be the one that
    sampled. Turning dropout off by eval mode would turn gradient checkpointing off as well.
    """
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            _without_dropout(value)
        elif isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)
    return config


def _plain_generation_config(model: str, base: PreTrainedModel) -> GenerationConfig:
    """Keep only the start and end tokens of a model's generation config.

    Its other settings (repetition penalty, beams, forced first and last tokens) would sample from
    a distribution other than the one that is trained.
    """
    published = base.generation_config
    start = published.decoder_start_token_id
    if base.config.is_encoder_decoder and start is None:
        raise ValueError(
            f"model = {model!r} has no decoder_start_token_id: set it in its "
            "generation_config.json to the token that the decoder starts with"
        )
    return GenerationConfig(eos_token_id=published.eos_token_id, decoder_start_token_id=start)


def checkpoint_gradients(model: str, policy: PeftModel) -> None:
    """Recompute each layer's activations in the backward pass instead of keeping them.

    Raises:
        ValueError: The model's implementation in transformers has no gradient checkpointing.
    """
    base: Any = policy.get_base_model()
    if not base.supports_gradient_checkpointing:
        raise ValueError(
            f"optimizer.gradient_checkpointing = True, but {type(base).__name__} of model = "
            f"{model!r} has none in transformers: set it to False, and lower "
            "optimizer.microbatch_size to save memory"
        )
    with warnings.catch_warnings():  # its newer name came after transformers 5.0
        warnings.simplefilter("ignore", FutureWarning)
        base.gradient_checkpointing_enable({"use_reentrant": False})
