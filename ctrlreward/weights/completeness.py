"""Completeness of a loaded model: undamaged files, and every weight is from the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedTokenizerBase

from ctrlreward.weights.cache import cache_folder

_NAMES_IN_ERROR = 5


@contextmanager
def damage_named(folder: Path, subject: str) -> Iterator[None]:
    """Name the truncated or damaged file if reading the folder of `subject` raises."""
    try:
        yield
    except Exception as error:  # of several libraries, most without a file name
        if (damage := _damage(folder)) is None:
            raise
        cached = folder.resolve().is_relative_to(cache_folder().resolve())
        remedy = f"Delete {folder}, which is then created again." if cached else "Save it again."
        raise OSError(f"{subject}: {damage}. {remedy}") from error


def _damage(folder: Path) -> str | None:
    """Return the first damaged file of a folder, with the reason; None if there is none."""
    for file in sorted((*folder.glob("*.json"), *folder.glob("*.safetensors"))):
        try:
            if file.suffix == ".json":
                json.loads(file.read_bytes())
            else:
                with safe_open(file, "pt"):
                    pass
        except (ValueError, RecursionError, SafetensorError, OSError) as error:
            size = file.stat().st_size
            return f"{file} is damaged or was cut off at {size} bytes ({error})"
    return None


def check_finite(model: str, loaded: nn.Module) -> None:
    """Raise if a weight of a model is NaN or infinite, which makes all of its scores NaN."""
    for name, weight in loaded.named_parameters():
        if weight.is_floating_point() and weight.numel() and not weight.is_meta:
            low, high = weight.detach().aminmax()  # NaN if one is
            if not (torch.isfinite(low) and torch.isfinite(high)):
                raise ValueError(
                    f"model = {model!r} has NaN or infinite weights in {name}, because the "
                    "training diverged or the file is damaged. Use an earlier checkpoint."
                )


def check_vocabulary(
    model: str, tokenizer: PreTrainedTokenizerBase, loaded: nn.Module, reads_padding: bool
) -> None:
    """Raise if a tokenizer has tokens that the embeddings of its model lack.

    Special tokens that occur in no input may, such as the padding token of many chat models.
    """
    rows = loaded.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if len(tokenizer) <= rows:
        return
    read = ["bos_token", "eos_token", "unk_token", "cls_token", "sep_token", "mask_token"]
    read += ["pad_token"] * reads_padding
    unread = {*tokenizer.all_special_tokens} - {getattr(tokenizer, name) for name in read}
    outside = {t: i for t, i in tokenizer.get_vocab().items() if i >= rows and t not in unread}
    if outside:
        token = min(outside, key=outside.__getitem__)
        raise ValueError(
            f"model = {model!r} embeds {rows} tokens, but its tokenizer has {len(outside)} more, "
            f"such as {token!r} ({outside[token]}). Use the tokenizer that the model was trained "
            "with, or resize its embeddings (resize_token_embeddings)."
        )


def check_complete(
    model: str,
    loaded: nn.Module,
    report: Mapping[str, Any],
    kind: str,
    unused: re.Pattern[str] | None = None,
) -> None:
    """Raise unless every weight of a model was loaded, and every layer of its checkpoint.

    `report` is the `output_loading_info` of `from_pretrained`, which ignored mismatched sizes;
    `kind` is what to use instead, and `unused` matches names of weights that may be missing.
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
