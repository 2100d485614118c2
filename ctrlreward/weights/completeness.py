"""Completeness of a loaded model: every weight comes from its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

_NAMES_IN_ERROR = 5


def check_complete(
    model: str,
    loaded: nn.Module,
    report: Mapping[str, Any],
    kind: str,
    unused: re.Pattern[str] | None = None,
) -> None:
    """Raise unless every weight of a model was loaded, and every layer of its checkpoint.

    Weights that are tied to others count as loaded. Weights of a checkpoint that belong to no layer
    of a numbered stack, such as another head, are ignored. `report` is the `output_loading_info`
    of `from_pretrained`, which ignored mismatched sizes; `kind` is what to use instead,
    and `unused` matches names of weights that may be missing.
    """
    missing = [key for key in report["missing_keys"] if not (unused and unused.search(key))]
    shapes = [
        f"{key} ({list(given)} in the checkpoint, {list(expected)} by its config.json)"
        for key, given, expected in report["mismatched_keys"]
    ]
    for problem, names in (
        ("has no weights for", missing),
        ("has weights of another shape:", shapes),
        (
            "has weights of layers that its config.json does not have:",
            _surplus_layers(loaded, report["unexpected_keys"]),
        ),
    ):
        if names:
            raise ValueError(
                f"model = {model!r} {problem} {listed(names)}. Use {kind} that was saved with all "
                "of its weights."
            )


def listed(names: Iterable[str]) -> str:
    """Return the first names, layer 2 before layer 10, and the number of the others."""
    ordered = sorted(names, key=lambda name: re.sub(r"\d+", lambda m: m[0].zfill(9), name))
    rest = len(ordered) - _NAMES_IN_ERROR
    return ", ".join(ordered[:_NAMES_IN_ERROR]) + (f" and {rest} more" if rest > 0 else "")


def _surplus_layers(loaded: nn.Module, keys: Iterable[str]) -> list[str]:
    """Return the weights of layers after the last one of the model's stack of that name."""
    # The checkpoint of a model with a head may have a prefix that the model lacks, or the reverse.
    sizes = {
        f".{name}": len(layers)
        for name, layers in loaded.named_modules()
        if isinstance(layers, nn.ModuleList)
    }
    surplus = []
    for key in keys:
        found = re.match(r"(.+?)\.(\d+)\.", f".{key}")
        if found and any(
            int(found[2]) >= size and (name.endswith(found[1]) or found[1].endswith(name))
            for name, size in sizes.items()
        ):
            surplus.append(key)
    return surplus
