"""Frozen models from folders of an adapter of peft, merged into the base model that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel

from ctrlreward.weights.completeness import damage_named, listed
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.loading import AutoClass, freeze, load_config, load_weights

# Files that peft's `save_pretrained` writes.
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_PREFIX = "base_model.model."  # of the name of a weight of the base model


def base_of(model: str) -> str | None:
    """Return the base model that a folder of an adapter names; None for another model."""
    folder = Path(model).expanduser()
    if not (folder / _CONFIG).is_file() or (folder / "config.json").is_file():
        return None
    with damage_named(folder, f"model = {model!r}"):
        named = json.loads((folder / _CONFIG).read_bytes()).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise ValueError(
            f"model = {model!r} is an adapter whose {_CONFIG} does not name its base model. Set "
            "base_model_name_or_path in it."
        )
    return named


def adapted_config(model: str, base: str) -> PretrainedConfig:
    """Return the configuration of the base model, with as many outputs as the adapter's head."""
    config = load_config(base)
    rows = [shape[0] for name, shape in _head(model).items() if len(shape) == 2]
    if rows and min(rows) != config.num_labels:
        config.num_labels = min(rows)
    return config


def load_adapted(
    auto_class: AutoClass, model: str, base: str, device: str, dtype: str | None
) -> PreTrainedModel:
    """Load a base model and merge the adapter of a folder into it, in float32.

    Layers that the adapter has as a whole, such as a head, replace the base model's.
    """
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict  # slow, and rarely used
    from safetensors.torch import load_file

    torch_dtype = pick_dtype(dtype, device)
    folder = Path(model).expanduser()
    with damage_named(folder, f"model = {model!r}"):
        config = PeftConfig.from_pretrained(str(folder))
        weights = load_file(folder / _WEIGHTS)
    if config.is_prompt_learning:
        raise ValueError(
            f"model = {model!r} is an adapter of type {config.peft_type.value}, must be one that "
            "merges into its base model, such as LoRA"
        )
    own = adapted_config(model, base)
    loaded = load_weights(auto_class, base, own, torch.float32, supplied=_head(model))
    try:
        adapted: Any = get_peft_model(loaded, config)
        report: Any = set_peft_model_state_dict(adapted, weights)
    except (RuntimeError, ValueError) as error:  # other shapes, or other names of layers
        raise ValueError(f"{model!r} does not fit its base model {base!r}: {error}") from error
    parts = (config.peft_type.value.lower(), "modules_to_save")
    lost = [key for key in report.missing_keys if any(part in key for part in parts)]
    if differing := [*lost, *report.unexpected_keys]:
        raise ValueError(
            f"{model!r} does not fit its base model {base!r}: it differs in {listed(differing)}"
        )
    merged: Any = adapted.merge_and_unload()
    return freeze(merged.to(torch_dtype), device)


def _head(model: str) -> dict[str, list[int]]:
    """Return names in the base model and shapes of the layers that an adapter has as a whole."""
    folder = Path(model).expanduser()
    if not (folder / _WEIGHTS).is_file():
        raise ValueError(
            f"model = {model!r} is an adapter without {_WEIGHTS}, must be a folder written by "
            "peft's save_pretrained (pickled *.bin weights are never loaded)"
        )
    with damage_named(folder, f"model = {model!r}"):
        whole = {*(json.loads((folder / _CONFIG).read_bytes()).get("modules_to_save") or ())}
    with damage_named(folder, f"model = {model!r}"), safe_open(folder / _WEIGHTS, "pt") as file:
        return {
            name.removeprefix(_PREFIX): list(file.get_slice(name).get_shape())
            for name in file.keys()  # noqa: SIM118, not a mapping
            if not whole.isdisjoint(name.split("."))
        }
