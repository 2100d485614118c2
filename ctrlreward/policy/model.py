"""The models of `PolicyTuner`: the frozen base model, its adapter and its reference policy."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import check_target_module_exists
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
from ctrlreward.models.dtypes import Dtype, Quantization, pick_dtype, quantization_config
from ctrlreward.models.loading import load_config, load_weights
from ctrlreward.models.sources import resolve


def load_base(
    model: str, dtype: str | None, quantization: Quantization | None, device: str
) -> PreTrainedModel:
    """Load the base model of `load_policy`, without dropout and with plain generation."""
    torch_dtype = pick_dtype(dtype, device)
    config = quantization_config(quantization, torch_dtype, "lora.quantization")
    plain = without_dropout(load_config(model))
    auto_class = AutoModelForSeq2SeqLM if plain.is_encoder_decoder else AutoModelForCausalLM
    base = load_weights(auto_class, model, plain, torch_dtype, config, device)
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
    if quantization is not None:
        _keep_in_training_mode(base)
    return base


def _keep_in_training_mode(base: PreTrainedModel) -> None:
    """Make quantised layers compute the same in eval mode as in training mode.

    On the CPU, bitsandbytes in eval mode rounds the activations of int8 layers, and packs the
    weights of nf4 layers, for good, into a format without gradients.
    """
    kinds = import_module("bitsandbytes.nn")
    for layer in base.modules():
        if isinstance(layer, kinds.Linear4bit | kinds.Linear8bitLt):
            layer.train()
            layer.train = lambda mode=True, layer=layer: layer


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


def checkpoint_gradients(model: str, policy: PeftModel) -> None:
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    base: Any = policy.get_base_model()
    if not base.supports_gradient_checkpointing:
        raise ValueError(
            f"optimizer.gradient_checkpointing = True, but {type(base).__name__} of model = "
            f"{model!r} does not support it in transformers. Set it to False, and "
            "use smaller batches with Trainer(accumulate_grad_batches=...) to save memory."
        )
    with warnings.catch_warnings():  # its newer name came after transformers 5.0
        warnings.simplefilter("ignore", FutureWarning)
        base.gradient_checkpointing_enable({"use_reentrant": False})


_ALL_LINEAR = "all-linear"
# Options of peft that are passed to it. All others have to be at their defaults.
_HONOURED = set(
    "r lora_alpha lora_dropout use_rslora use_dora init_lora_weights target_modules "
    "exclude_modules layers_to_transform layers_pattern rank_pattern alpha_pattern fan_in_fan_out "
    "task_type inference_mode base_model_name_or_path peft_type peft_version auto_mapping".split()
)
_INITIAL = (True, False, "gaussian", "orthogonal")
_WEIGHTS = "adapter_model.safetensors"
_START = "start"  # name of the frozen copy of the adapter that training starts from


@dataclass(frozen=True)
class LoRA:
    """The adapter, and the precision of the frozen base weights under it.

    The first four are as in peft's `LoraConfig`, with other defaults; `PolicyTuner` also takes a
    `LoraConfig` itself. Adapter weights are float32. Dropout layers of the base model stay off, and
    the adapter's are on only while the loss is computed.

    Args:
        r: Rank of the adapter. None: 16 (peft: 8).
        lora_alpha: Scale of the adapter, which is multiplied by lora_alpha / r. None: twice the
            rank (peft: 8).
        target_modules: Linear layers to adapt, as in peft: a list of the last parts of their names,
            such as `["q_proj", "v_proj"]`, or a regular expression for full names; a single string
            may also be a last part. `"all-linear"` and None: all except the output layer, which is
            never adapted.
        lora_dropout: Dropout rate of the adapter's inputs, in [0, 1). None: 0, so that the policy
            that learns is the one that sampled.
        dtype: Data type of the base weights, or of the computations if they are quantised. None
            picks one by device.
        quantization: `"nf4"` (4 bits, double quantisation, as in QLoRA) or `"int8"` quantises the
            base weights with bitsandbytes while loading; None does not.
        adapter: Folder of a trained LoRA adapter to continue from, as `PolicyTuner.export_adapter`
            or peft's `save_pretrained` writes it; safetensors only. Rank, alpha, modules and
            dropout are the adapter's. None: a new adapter, which changes nothing at first.

    Raises:
        ValueError: A number is out of range, or the quantisation is unknown.

    Example:
        >>> LoRA(r=8).scale
        16
    """

    r: int | None = None
    lora_alpha: int | None = None
    target_modules: str | Sequence[str] | None = None
    lora_dropout: float | None = None
    dtype: Dtype | None = None
    quantization: Quantization | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        positive("lora.r", self.r)
        positive("lora.lora_alpha", self.lora_alpha)
        if self.lora_dropout is not None and not 0 <= self.lora_dropout < 1:
            raise ValueError(f"lora.lora_dropout must be in [0, 1), got {self.lora_dropout}")
        if self.quantization is not None:
            one_of("lora.quantization", self.quantization, get_args(Quantization))

    @property
    def scale(self) -> int:
        """The alpha of a new adapter."""
        return 2 * (self.r or 16) if self.lora_alpha is None else self.lora_alpha


def check_config(config: LoraConfig) -> None:
    """Raise if a configuration of peft has an option that training does not support.

    An adapter must have only low-rank weights: checkpoints and exports contain nothing else, and
    without them the policy has to be the reference.
    """
    plain = LoraConfig()
    for name in sorted({field.name for field in fields(config)} - _HONOURED):
        given = getattr(config, name)
        if given != getattr(plain, name):
            raise ValueError(
                f"lora = LoraConfig({name}={given!r}): PolicyTuner trains low-rank weights alone, "
                f"leave {name} out"
            )
    if config.init_lora_weights not in _INITIAL:
        raise ValueError(
            f"lora = LoraConfig(init_lora_weights={config.init_lora_weights!r}) changes the base "
            "weights, which are the reference policy. Use True, 'gaussian' or 'orthogonal'."
        )


def load_policy(model: str, lora: LoRA | LoraConfig, device: str) -> PeftModel:
    """Load a causal or encoder-decoder language model with a new or a trained LoRA adapter.

    `lora` may be peft's configuration of a new adapter, with the defaults of dtype and
    quantisation. Quantised weights are loaded to the device, others to the CPU.
    """
    options = LoRA() if isinstance(lora, LoraConfig) else lora
    base = load_base(model, options.dtype, options.quantization, device)
    # The product of the output layer is computed from its weights, without any adapter.
    output = base.get_output_embeddings()
    linear = {
        name
        for name, layer in base.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and layer is not output
    }
    if options.adapter is not None:
        folder = str(Path(options.adapter).expanduser())
        return _continued(base, model, options, folder, linear).train()
    if isinstance(lora, LoraConfig):
        config = copy(lora)
        config.inference_mode = False
    else:
        targets: Any = _ALL_LINEAR if lora.target_modules is None else lora.target_modules
        config = LoraConfig(
            r=lora.r or 16,
            lora_alpha=lora.scale,
            target_modules=targets,
            lora_dropout=lora.lora_dropout or 0.0,
        )
    if config.target_modules is not None:  # else peft chooses by type of model
        config.target_modules = _target_modules(config.target_modules, linear)
    config.task_type = "SEQ_2_SEQ_LM" if base.config.is_encoder_decoder else "CAUSAL_LM"
    # Lets plain peft find the base model of an exported adapter.
    config.base_model_name_or_path = resolve(model)
    policy = get_peft_model(base, config)
    if others := _adapted(policy) - linear:
        raise ValueError(
            f"lora.target_modules must be linear layers other than the output layer, but "
            f"{lora.target_modules!r} adapts {', '.join(sorted(others))}"
        )
    return policy.train()


def _adapted(policy: PeftModel) -> set[str]:
    """Return the full names of the layers that an adapter changes."""
    tuner: Any = policy.base_model
    return set(tuner.targeted_module_names)


def _target_modules(targets: str | Collection[str], linear: Set[str]) -> str | list[str]:
    """Return the targets of an adapter in peft's format, after checking each."""
    if targets == _ALL_LINEAR or (isinstance(targets, str) and _matching(targets, linear)):
        return targets
    names = [targets] if isinstance(targets, str) else sorted(targets)
    known = sorted({name.rpartition(".")[2] for name in linear})
    for name in names or [""]:
        if not _matching([name], linear):
            one_of("lora.target_modules", name, known)
    return names


def _matching(targets: str | list[str], linear: Set[str]) -> set[str]:
    """Return the layers that peft adapts for some targets."""
    config = LoraConfig(target_modules=targets)
    try:
        return {name for name in linear if check_target_module_exists(config, name)}
    except re.error as error:
        raise ValueError(
            f"lora.target_modules = {targets!r} is not a regular expression ({error}). Use names "
            "of linear layers in a list, or a regular expression that matches full names."
        ) from error


def _continued(
    base: PreTrainedModel, model: str, lora: LoRA, folder: str, linear: Set[str]
) -> PeftModel:
    """Add a trained adapter, to be trained further."""
    config, weights = _adapter_config(folder), load_file(Path(folder, _WEIGHTS))
    fits = f"lora.adapter = {folder!r}, trained on {config.base_model_name_or_path!r},"
    config.base_model_name_or_path = resolve(model)
    try:
        policy = get_peft_model(base, config)
        result: Any = set_peft_model_state_dict(policy, weights)
    except (RuntimeError, ValueError) as error:  # other shapes, or other names of layers
        raise ValueError(f"{fits} does not fit model = {model!r}: {error}") from error
    lost = [key for key in result.missing_keys if "lora_" in key]
    if differing := [*lost, *result.unexpected_keys]:
        raise ValueError(f"{fits} does not fit model = {model!r}: it differs in {differing[:3]}")
    adapted = _adapted(policy)
    if others := adapted - linear:
        raise ValueError(
            f"{fits} adapts {', '.join(sorted(others))}, must adapt linear layers other than the "
            "output layer"
        )
    for name in ("r", "lora_alpha", "lora_dropout"):
        given, value = getattr(lora, name), getattr(config, name)
        if given is not None and given != value:
            raise ValueError(
                f"lora.{name} = {given}, but lora.adapter = {folder!r} has {value}. Leave "
                f"lora.{name} out."
            )
    if lora.target_modules is not None:
        targets = _target_modules(lora.target_modules, linear)
        if adapted != (set(linear) if targets == _ALL_LINEAR else _matching(targets, linear)):
            raise ValueError(
                f"lora.target_modules = {lora.target_modules!r}, but lora.adapter = {folder!r} "
                f"adapts {', '.join(sorted({n.rpartition('.')[2] for n in adapted}))}. Leave it "
                "out."
            )
    return policy


def _adapter_config(folder: str) -> LoraConfig:
    absent = [n for n in ("adapter_config.json", _WEIGHTS) if not Path(folder, n).is_file()]
    if absent:
        raise ValueError(
            f"lora.adapter = {folder!r} does not contain {' and '.join(absent)}, must be a folder "
            "written by PolicyTuner.export_adapter or by peft's save_pretrained"
        )
    config = PeftConfig.from_pretrained(folder)
    if not isinstance(config, LoraConfig):
        raise ValueError(f"lora.adapter = {folder!r} is of type {config.peft_type}, must be a LoRA")
    if config.modules_to_save or config.bias != "none":
        raise ValueError(
            f"lora.adapter = {folder!r} has whole layers or biases (modules_to_save = "
            f"{config.modules_to_save}, bias = {config.bias!r}), must have low-rank weights only. "
            "Merge it into its base model first."
        )
    config.inference_mode = False
    return config


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
