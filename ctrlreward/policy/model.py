"""The models of `PolicyTuner`: a base model with an adapter, its reference policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ctrlreward.arguments import one_of, positive
from ctrlreward.policy.base_model import Quantization, load_base
from ctrlreward.weights.dtypes import Dtype
from ctrlreward.weights.sources import resolve

_ALL_LINEAR = "all-linear"
_START = "start"  # name of the frozen copy of the adapter that training starts from


@dataclass(frozen=True)
class LoRA:
    """The adapter, and the precision of the frozen base weights under it.

    Adapter weights are float32. Dropout layers of the base model stay off, and the adapter's are
    on only while the loss is computed: sampling, the reference policy and the log-probabilities at
    sampling have none.

    Args:
        rank: Rank of the adapter. None: 16.
        dtype: Data type of the base weights, or of the computations if they are quantised. None
            picks one by device.
        alpha: Scale of the adapter, which is multiplied by alpha / rank. None: twice the rank.
        targets: Names of the linear layers to adapt, such as `["q_proj", "v_proj"]`, as in peft's
            `target_modules`; a single string is one name. `"all-linear"` and None: all except the
            output layer, which is never adapted.
        dropout: Dropout rate of the adapter's inputs, in [0, 1). None: 0, with which the ratio to
            the policy that sampled is exactly 1 at the first update.
        quantization: `"nf4"` (4 bits, double quantisation, as in QLoRA) or `"int8"` quantises the
            base weights with bitsandbytes while loading; None does not.
        adapter: Folder of a trained LoRA adapter to continue from, as `PolicyTuner.export_adapter`
            or peft's `save_pretrained` writes it; safetensors only. Rank, alpha, targets and
            dropout are the adapter's. None: a new adapter, which changes nothing at first.

    Raises:
        ValueError: A number is out of range, or the quantisation is unknown.

    Example:
        >>> LoRA(rank=8).scale
        16
        >>> LoRA(targets=["q_proj", "v_proj"], quantization="int4")
        Traceback (most recent call last):
        ValueError: lora.quantization = 'int4': give one of nf4, int8 (did you mean 'int8'?)
    """

    rank: int | None = None
    dtype: Dtype | None = None
    alpha: int | None = None
    targets: str | Sequence[str] | None = None
    dropout: float | None = None
    quantization: Quantization | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        positive("lora.rank", self.rank)
        positive("lora.alpha", self.alpha)
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"lora.dropout = {self.dropout}: give a number from 0 to below 1")
        if self.quantization is not None:
            one_of("lora.quantization", self.quantization, get_args(Quantization))

    @property
    def scale(self) -> int:
        """The alpha of a new adapter."""
        return 2 * (self.rank or 16) if self.alpha is None else self.alpha


def load_policy(model: str, lora: LoRA, device: str) -> PeftModel:
    """Load a causal or encoder-decoder language model with a new or a trained LoRA adapter.

    Args:
        model: Local folder, Hugging Face id or short name.
        lora: The adapter, and dtype and quantisation of the base weights.
        device: Device that the model will run on, as in torch. Quantised weights are loaded to it,
            others to the CPU.

    Raises:
        ValueError: An encoder-decoder does not define the token that its decoder starts with; a
            target is no linear layer of the model; the adapter cannot be read, is not for this
            model, or contradicts the other options.
        ImportError: bitsandbytes is needed and not installed.
    """
    base = load_base(model, lora.dtype, lora.quantization, device)
    linear = _linear_layers(base)
    if lora.adapter is not None:
        return _continued(base, model, lora, lora.adapter, linear).train()
    config = LoraConfig(
        r=lora.rank or 16,
        lora_alpha=lora.scale,
        target_modules=_target_modules(lora.targets, linear),
        lora_dropout=lora.dropout or 0.0,
        task_type="SEQ_2_SEQ_LM" if base.config.is_encoder_decoder else "CAUSAL_LM",
        # Lets plain peft find the base model of an exported adapter.
        base_model_name_or_path=resolve(model),
    )
    return get_peft_model(base, config).train()


def _linear_layers(base: PreTrainedModel) -> list[str]:
    """Return the full names of the linear layers, except the output layer.

    The output layer's product is computed from its own weights (`engine.output_layer`), past any
    adapter.
    """
    return [
        name
        for name, layer in base.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and layer is not base.get_output_embeddings()
    ]


def _target_modules(targets: str | Sequence[str] | None, linear: Sequence[str]) -> str | list[str]:
    """Return the targets of an adapter as peft takes them, after checking each."""
    if targets is None or targets == _ALL_LINEAR:
        return _ALL_LINEAR
    names = [targets] if isinstance(targets, str) else list(targets)
    known = sorted({name.rpartition(".")[2] for name in linear})
    for name in names or [""]:
        if not _matching([name], linear):
            one_of("lora.targets", name, known)
    return names


def _matching(targets: Sequence[str], linear: Sequence[str]) -> set[str]:
    """Return the layers that peft adapts for some targets: those whose name ends in one."""
    return {name for name in linear for t in targets if f".{name}".endswith(f".{t}")}


def _continued(
    base: PreTrainedModel, model: str, lora: LoRA, folder: str, linear: Sequence[str]
) -> PeftModel:
    """Add a trained adapter, to be trained further."""
    config = _adapter_config(folder)
    fits = f"lora.adapter = {folder!r}, trained on {config.base_model_name_or_path!r},"
    config.base_model_name_or_path = resolve(model)
    try:
        policy = get_peft_model(base, config)
        missing = _load_adapter(policy, folder, "default")
    except (RuntimeError, ValueError) as error:  # other shapes, or other names of layers
        raise ValueError(f"{fits} does not fit model = {model!r}: {error}") from error
    if missing:
        raise ValueError(f"{fits} does not fit model = {model!r}: it differs in {missing[:3]}")
    tuner: Any = policy.base_model
    adapted = set(tuner.targeted_module_names)
    if not adapted <= set(linear):
        raise ValueError(
            f"{fits} adapts {', '.join(sorted(adapted - set(linear)))}: give one of linear layers "
            "other than the output layer"
        )
    _check_agreement(lora, config, adapted, linear)
    return policy


def _adapter_config(folder: str) -> LoraConfig:
    path = Path(folder).expanduser()
    needed = [path / "adapter_config.json", path / "adapter_model.safetensors"]
    absent = [file.name for file in needed if not file.is_file()]
    if absent:
        raise ValueError(
            f"lora.adapter = {folder!r} has no {' and no '.join(absent)}: give a folder written by "
            "PolicyTuner.export_adapter or by peft's save_pretrained, which has both"
        )
    config = PeftConfig.from_pretrained(str(path))
    if not isinstance(config, LoraConfig):
        raise ValueError(f"lora.adapter = {folder!r} is of type {config.peft_type}: give a LoRA")
    if config.modules_to_save or config.bias != "none":
        raise ValueError(
            f"lora.adapter = {folder!r} has whole layers or biases (modules_to_save = "
            f"{config.modules_to_save}, bias = {config.bias!r}): give one of low-rank weights "
            "alone, or merge it into its base model first"
        )
    config.inference_mode = False
    return config


def _load_adapter(policy: PeftModel, folder: str, name: str) -> list[str]:
    """Load the weights of an adapter; return the names that only model or file has."""
    weights = load_file(Path(folder).expanduser() / "adapter_model.safetensors")
    result: Any = set_peft_model_state_dict(policy, weights, adapter_name=name)
    lost = [key for key in result.missing_keys if "lora_" in key and f".{name}" in key]
    return [*lost, *result.unexpected_keys]


def _check_agreement(
    lora: LoRA, config: LoraConfig, adapted: set[str], linear: Sequence[str]
) -> None:
    """Raise if options of a new adapter differ from those of the trained one."""
    has = {"rank": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    for name, value in has.items():
        given = getattr(lora, name)
        if given is not None and given != value:
            raise ValueError(
                f"lora.{name} = {given}, but lora.adapter = {lora.adapter!r} has {value}: leave "
                f"lora.{name} out"
            )
    if lora.targets is None:
        return
    targets = _target_modules(lora.targets, linear)
    if adapted != (set(linear) if targets == _ALL_LINEAR else _matching(targets, linear)):
        raise ValueError(
            f"lora.targets = {lora.targets!r}, but lora.adapter = {lora.adapter!r} adapts "
            f"{', '.join(sorted({n.rpartition('.')[2] for n in adapted}))}: leave it out"
        )


def keep_start(policy: PeftModel, folder: str) -> None:
    """Add a frozen copy of the trained adapter, the reference policy of `reference_policy`."""
    policy.add_adapter(_START, policy.peft_config["default"])
    _load_adapter(policy, folder, _START)
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


def export_adapter(policy: PeftModel, folder: str) -> None:
    """Write the adapter that is trained in peft's format."""
    policy.save_pretrained(folder, selected_adapters=["default"])
