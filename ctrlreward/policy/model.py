"""The models of `PolicyTuner`: the frozen base model, its adapter and its reference policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from ctrlreward.arguments import one_of, positive
from ctrlreward.models.dtypes import Dtype, pick_dtype
from ctrlreward.models.loading import load_config, load_weights
from ctrlreward.models.sources import resolve


def load_base(model: str, dtype: str | None, device: str) -> PreTrainedModel:
    """Load the base model of `load_policy`, without dropout and with plain generation."""
    plain = without_dropout(load_config(model))
    auto_class = AutoModelForSeq2SeqLM if plain.is_encoder_decoder else AutoModelForCausalLM
    base = load_weights(auto_class, model, plain, pick_dtype(dtype, device))
    published = base.generation_config
    start = published.decoder_start_token_id
    if base.config.is_encoder_decoder and start is None:
        raise ValueError(
            f"model = {model!r} has no decoder_start_token_id. Set it in its "
            "generation_config.json to the token that the decoder starts with."
        )
    # Its other settings (repetition penalty, beams, forced first and last tokens) would sample from
    # a distribution other than the one that is trained.
    base.generation_config = GenerationConfig(
        eos_token_id=published.eos_token_id, decoder_start_token_id=start
    )
    return base


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """Set every rate of dropout, including layer dropout, and of jitter to 0.

    The policy that learns has to be the one that sampled; eval mode would turn gradient
    checkpointing off as well.
    """
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            without_dropout(value)
        elif isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)
    return config


# Adapters that leave the base weights alone, which are the reference policy.
_INITIAL = (True, False, "gaussian", "orthogonal")
_FILES = ("adapter_config.json", "adapter_model.safetensors")
_START = "start"  # name of the frozen copy of the adapter that training starts from


@dataclass(frozen=True)
class LoRA:
    """The adapter, and the precision of the frozen base weights under it.

    The first four are as in peft's `LoraConfig`, with other defaults; `PolicyTuner` also takes a
    `LoraConfig` itself. Adapter weights are float32. Dropout layers of the base model stay off, and
    the adapter's are on only while the loss is computed.

    Args:
        r: Rank of the adapter. None: 16 (peft: 8).
        lora_alpha: The adapter is multiplied by lora_alpha / r. None: twice the rank (peft: 8).
        target_modules: Linear layers to adapt, as in peft: a list of the last parts of their names,
            such as `["q_proj", "v_proj"]`, or a regular expression for full names. `"all-linear"`
            and None: all except the output layer, which is never adapted.
        lora_dropout: Dropout rate of the adapter's inputs, in [0, 1). None: 0, so that the policy
            that learns is the one that sampled.
        dtype: Data type of the base weights. None picks one by device.
        adapter: Folder of a trained LoRA adapter to continue from, as `PolicyTuner.export_adapter`
            or peft's `save_pretrained` writes it; safetensors only. The first four are the
            adapter's and left out. None: a new adapter, which changes nothing at first.
    """

    r: int | None = None
    lora_alpha: int | None = None
    target_modules: str | Sequence[str] | None = None
    lora_dropout: float | None = None
    dtype: Dtype | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        positive("lora.lora_alpha", self.lora_alpha)
        for name in ("r", "lora_alpha", "target_modules", "lora_dropout"):
            if self.adapter is not None and getattr(self, name) is not None:
                raise ValueError(f"lora.adapter has its own {name}: leave out lora.{name}")

    @property
    def scale(self) -> int:
        """The alpha of a new adapter."""
        return 2 * (self.r or 16) if self.lora_alpha is None else self.lora_alpha


def load_policy(model: str, lora: LoRA | LoraConfig, device: str) -> PeftModel:
    """Load a causal or encoder-decoder language model with a new or a trained LoRA adapter.

    A ValueError says that the adapter does not fit the model, or has more than low-rank weights of
    linear layers: checkpoints and exports contain nothing else.
    """
    options = LoRA() if isinstance(lora, LoraConfig) else lora
    base = load_base(model, options.dtype, device)
    # The product of the output layer is computed from its weights, without any adapter.
    output = base.get_output_embeddings()
    linear = {
        name
        for name, layer in base.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and layer is not output
    }
    if options.adapter is not None:
        policy = _continued(base, model, options.adapter)
    else:
        if isinstance(lora, LoraConfig):
            config = copy(lora)
            config.inference_mode = False
        else:
            targets: Any = lora.target_modules
            config = LoraConfig(
                r=lora.r or 16,
                lora_alpha=lora.scale,
                target_modules="all-linear" if targets is None else targets,
                lora_dropout=lora.lora_dropout or 0.0,
            )
        if config.init_lora_weights not in _INITIAL:
            raise ValueError(
                f"lora.init_lora_weights must be one of {_INITIAL}, got "
                f"{config.init_lora_weights!r}, which changes the base weights"
            )
        config.task_type = "SEQ_2_SEQ_LM" if base.config.is_encoder_decoder else "CAUSAL_LM"
        # Lets plain peft find the base model of an exported adapter.
        config.base_model_name_or_path = resolve(model)
        policy = get_peft_model(base, config)
        targets = config.target_modules
        for name in () if isinstance(targets, str) else targets or ():
            if not any(f".{layer}".endswith(f".{name}") for layer in linear):  # peft ignores it
                one_of("lora.target_modules", name, sorted({n.split(".")[-1] for n in linear}))
    tuner: Any = policy.base_model
    others = sorted({*tuner.targeted_module_names} - linear)
    others += [n for n, p in policy.named_parameters() if p.requires_grad and "lora_" not in n]
    if others:
        raise ValueError(
            f"lora must train low-rank weights of linear layers other than the output layer "
            f"(target_modules, bias, modules_to_save), but it trains {', '.join(others[:3])}"
        )
    return policy.train()


def _continued(base: PreTrainedModel, model: str, adapter: str) -> PeftModel:
    """Add a trained adapter, to be trained further."""
    folder = Path(adapter).expanduser()
    if absent := [name for name in _FILES if not (folder / name).is_file()]:
        raise ValueError(
            f"lora.adapter = {adapter!r} does not contain {' and '.join(absent)}, must be a folder "
            "written by PolicyTuner.export_adapter or by peft's save_pretrained"
        )
    config = PeftConfig.from_pretrained(str(folder))
    trained_on, config.base_model_name_or_path = config.base_model_name_or_path, resolve(model)
    config.inference_mode = False
    try:
        policy = get_peft_model(base, config)
        result: Any = set_peft_model_state_dict(policy, load_file(folder / _FILES[1]))
        lost = [key for key in result.missing_keys if "lora_" in key] + result.unexpected_keys
        if lost:
            raise ValueError(f"it differs in {lost[:3]}")
    except (RuntimeError, ValueError) as error:  # other shapes, or other names of layers
        raise ValueError(
            f"lora.adapter = {adapter!r}, trained on {trained_on!r}, does not fit model = "
            f"{model!r}: {error}"
        ) from error
    return policy


def keep_start(policy: PeftModel, folder: str) -> None:
    """Add a frozen copy of the trained adapter, the reference policy of `reference_policy`."""
    policy.load_adapter(str(Path(folder).expanduser()), _START, is_trainable=True)
    policy.set_adapter("default")  # which also freezes every other adapter


@contextmanager
def reference_policy(policy: PeftModel) -> Iterator[None]:
    """Turn a policy into its reference: the adapter of `keep_start`, else the base model."""
    if _START not in policy.peft_config:
        with policy.disable_adapter():
            yield
        return
    policy.set_adapter(_START, inference_mode=True)
    try:
        yield
    finally:
        policy.set_adapter("default")
