"""Fingerprint of scorers: their settings and the revisions of their weights, as flat plain data."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import os
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.model_scorer import ModelScorer
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.sources import SHORT_NAMES, TRAINED_NAMES, VECTOR_NAMES, trained_folder

Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"

# Settings of speed and device, which change a score by rounding at most, and of a server's client.
_IGNORED = {"batch_tokens", "device", "batch_texts", "concurrency", "patience", "timeout"}
_IGNORED |= {"outage", "outage_budget"}
# Attributes that name weights; other strings do if they are an existing path.
_NAMES = {"model", "name", "encoder"}
# Suffixes of files that decide what a model computes.
_SUFFIXES = {".gguf", ".json", ".model", ".npy", ".safetensors", ".txt", ".jinja"}
_SHOWN = 120  # characters of a list; of a longer one, its digest
_KEYS = 32  # items of a collection; of a larger one, its digest


def fingerprint(scorers: Mapping[str, Scorer], aggregate: object) -> dict[str, Plain]:
    """Return everything that determines the scores of some scorers, by dotted key.

    Settings are the class of a scorer, its public attributes, and the arguments stored under
    a private name. A device counts by the dtype that it implies, weights by the wheel, the cached
    commit or the files, functions by their name, closure and defaults.
    """
    found: dict[str, Plain] = {}
    for id_, scorer in scorers.items():
        _walk(scorer, f"scorers.{id_}", found, ())
    _walk(aggregate, "aggregate", found, ())
    for package in ("ctrlreward", "torch", "transformers"):
        found[f"versions.{package}"] = version(package)
    return found


def weights_identity(model: str) -> str:
    """Return the identity of a model's weights: wheel, commit, or digest of its files."""
    return _identity(model, "model")


def digest_of(value: object) -> str:
    """Return the SHA-256 of plain data as canonical JSON, in hexadecimal."""
    content = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _walk(value: object, key: str, found: dict[str, Plain], above: tuple[int, ...]) -> None:
    """Add the parts of a value to `found`, under keys that start with `key`."""
    if id(value) in above:
        return
    if isinstance(value, str | os.PathLike):
        parent, _, attribute = key.rpartition(".")
        of_model = parent.endswith(".models")  # keys are the parts
        found[key] = _identity(os.fspath(value), "model" if of_model else attribute)
    elif (plain := _plain(value)) is not None:
        short = len(json.dumps(plain)) <= _SHOWN
        found[key] = plain[0] if short else f"sha256:{digest_of(plain)}"
    elif isinstance(value, np.ndarray | torch.Tensor):
        found[key] = _array_identity(value)
    elif isinstance(value, torch.dtype | torch.device):
        found[key] = str(value)
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | np.ufunc):
        module = getattr(value, "__module__", None)
        found[key] = f"{module}.{getattr(value, '__qualname__', value.__name__)}"
        bound: list[object] = []
        if isinstance(value, types.FunctionType):
            bound.extend(cell.cell_contents for cell in value.__closure__ or ())
            bound.extend(value.__defaults__ or ())
        if bound:
            _walk(bound, f"{key}.bound", found, (*above, id(value)))
    else:
        inner: dict[str, Plain] = {}
        for name, item in _parts(value):
            _walk(item, f"{key}.{name}", inner, (*above, id(value)))
        large = isinstance(value, Mapping | Sequence | Set) and len(value) > _KEYS
        found.update({key: f"sha256:{digest_of(inner)}"} if large else inner)


def _parts(value: Any) -> Iterator[tuple[object, object]]:
    """Yield name and value of the parts of an object or a collection."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, Set):
        yield from enumerate(sorted(value, key=repr))
    elif isinstance(value, Sequence):
        yield from enumerate(value)
    elif isinstance(value, functools.partial):
        yield from {"function": value.func, "args": value.args, "keywords": value.keywords}.items()
    elif isinstance(value, types.MethodType):
        yield from {"function": value.__func__, "self": value.__self__}.items()
    else:
        yield "class", type(value)
        if hasattr(value, "get_vocab"):  # a tokenizer
            yield "vocabulary", value.get_vocab()
        elif isinstance(value, torch.nn.Module):
            yield "weights", {n: t for n, t in value.state_dict().items() if torch.is_tensor(t)}
        else:
            yield from _settings(value)


def _settings(value: object) -> Iterator[tuple[str, object]]:
    """Yield the settings of an object: public attributes, and arguments under a private name."""
    kept = getattr(value, "__dict__", {})
    try:
        arguments: Mapping[str, Any] = inspect.signature(type(value)).parameters
    except (TypeError, ValueError):  # some classes of extension modules
        arguments = {}
    for name in sorted(kept):
        public = name.removeprefix("_")
        derived = isinstance(getattr(type(value), name, None), functools.cached_property)
        if derived or public in _IGNORED or (name != public and public not in arguments):
            continue
        if public == "dtype" and isinstance(value, ModelScorer):
            if isinstance(value.model, str):
                yield "dtype", _used_dtype(value)
            continue
        yield public, kept[name]


def _used_dtype(scorer: ModelScorer[Any]) -> str:
    try:
        return str(pick_dtype(scorer.dtype, scorer.device)).removeprefix("torch.")
    except ValueError:  # a device that is not in this machine
        return f"{scorer.dtype or 'default'} of {scorer.device}"


def _plain(value: object) -> list[Plain] | None:
    """Return plain data in a list, for JSON; None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return [value]
    if isinstance(value, float):
        return [value if math.isfinite(value) else str(value)]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        if all(item is not None for item in items):
            return [[item[0] for item in items if item is not None]]
    return None


def _identity(name: str, attribute: str) -> str:
    """Return a string; names of weights and paths are replaced by the identity of their content."""
    wheel = SHORT_NAMES.get(name) or VECTOR_NAMES.get(name)
    if attribute in _NAMES and wheel is not None:
        return f"{name} of {wheel.name} {wheel.version} sha256:{wheel.sha256}"
    trained = attribute in _NAMES and name in TRAINED_NAMES
    path = trained_folder(name) if trained else Path(name)
    if name[:1] == "~":
        path = path.expanduser()
    looks_like_a_path = attribute in _NAMES or os.sep in name or "." in name
    if not name or not looks_like_a_path or not os.path.exists(path):
        commit = _cached_commit(name) if attribute in ("model", "encoder") else None
        return f"{name} at {commit}" if commit else name
    digests = []
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file() and (file == path or file.suffix in _SUFFIXES):
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            digests.append([file.name if file != path else "", digest])
    return f"sha256:{digest_of(digests)}"


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
