"""Identity of scorers: a digest of their settings, package versions and weights."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Set
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctrlreward.files import flat
from ctrlreward.models.dtypes import pick_dtype
from ctrlreward.models.sources import SHORT_NAMES, TRAINED_NAMES, VECTOR_NAMES, trained_folder
from ctrlreward.scorers.base import Scorer

# Settings of speed and device, which change a score by rounding at most, and of a server's client.
_IGNORED = {"batch_tokens", "device", "batch_texts", "concurrency", "patience", "timeout"}
_IGNORED |= {"max_retries"}
# Settings that name weights.
_NAMES = {"model", "name", "encoder"}
# Suffixes of files that decide what a model computes.
_SUFFIXES = {".gguf", ".json", ".model", ".npy", ".safetensors", ".txt", ".jinja"}
_MOST = 32  # items of a collection; of a larger one, its digest


def fingerprint(scorers: Mapping[str, Scorer], aggregate: object) -> dict[str, Any]:
    """Return what determines the scores of some scorers, as plain values by dotted key.

    Settings are the class of a scorer and its public attributes, weights the wheel, the cached
    commit or the content of the files. A device counts by the dtype that it implies, a function
    by its name, the code by the versions of the packages.
    """
    packages = ("ctrlreward", "torch", "transformers")
    versions = {package: version(package) for package in packages}
    described = {"scorers": dict(scorers), "aggregate": aggregate, "versions": versions}
    return flat(_as_json(described))


def digest_of(value: object) -> str:
    """Return the SHA-256 of plain data as canonical JSON, in hexadecimal."""
    content = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(content.encode()).hexdigest()


def weights_identity(model: str) -> str:
    """Return the identity of a model's weights: wheel, commit, or digest of its files."""
    wheel = SHORT_NAMES.get(model) or VECTOR_NAMES.get(model)
    if wheel is not None:
        return f"{model} of {wheel.name} {wheel.version} sha256:{wheel.sha256}"
    path = trained_folder(model) if model in TRAINED_NAMES else Path(model).expanduser()
    if not model or not path.exists():
        commit = _cached_commit(model)
        return f"{model} at {commit}" if commit else model
    digests = []
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file() and (file == path or file.suffix in _SUFFIXES):
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            digests.append([file.name if file != path else "", digest])
    return f"sha256:{digest_of(digests)}"


def _as_json(value: object) -> Any:
    return json.loads(json.dumps(value, default=_plain), parse_constant=str)


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON lacks."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return _array_identity(value)
    if isinstance(value, torch.nn.Module):
        return {"class": _name_of(type(value)), **value.state_dict()}
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if hasattr(value, "__qualname__"):
        return _name_of(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike | torch.dtype | torch.device):
        return str(value)
    return {"class": _name_of(type(value)), **_settings(value)}


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _settings(value: object) -> dict[str, Any]:
    """Return public attributes, and arguments under a private name; of foreign classes plain ones.

    The name of a model becomes the identity of its weights.
    """
    kept, settings = getattr(value, "__dict__", {}), {}
    ours = isinstance(value, Scorer) or type(value).__module__.startswith("ctrlreward.")
    arguments = inspect.signature(type(value)).parameters if ours else {}
    for name in sorted(kept):
        public, setting = name.removeprefix("_"), kept[name]
        derived = isinstance(getattr(type(value), name, None), functools.cached_property)
        if derived or public in _IGNORED or (name != public and public not in arguments):
            continue
        if isinstance(setting, Mapping):
            setting = {str(key): item for key, item in setting.items()}
        if isinstance(setting, list | tuple | dict | Set) and len(setting) > _MOST:
            setting = f"sha256:{digest_of(_as_json(setting))}"
        if public in _NAMES and isinstance(setting, str | os.PathLike):
            setting = weights_identity(os.fspath(setting))
        elif public == "models" and isinstance(setting, Mapping):
            names = {k: v for k, v in setting.items() if isinstance(v, str)}
            setting = {**setting, **{k: weights_identity(v) for k, v in names.items()}}
        elif public == "dtype" and hasattr(value, "device"):
            setting = _used_dtype(setting, value.device)
        elif not ours and not _is_json(setting):
            setting = _name_of(type(setting))
        settings[public] = setting
    return settings


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _used_dtype(dtype: str | None, device: str) -> str:
    try:
        return str(pick_dtype(dtype, device)).removeprefix("torch.")
    except ValueError:  # a device that is not in this machine
        return f"{dtype or 'default'} of {device}"


def _cached_commit(name: str) -> str | None:
    """Return the commit of a hub id in the local cache; None if not cached."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # not a hub id
        return None
    return Path(cached).parent.name if isinstance(cached, str) else None


def _array_identity(value: np.ndarray[Any, Any] | torch.Tensor) -> str:
    """Return dtype, shape and digest of an array."""
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return f"{dtype} {shape} sha256:{content}"
