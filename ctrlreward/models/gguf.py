"""GGUF files, converted once to float32 safetensors that transformers and peft load."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward.extras import import_extra
from ctrlreward.models.cache import build_once
from ctrlreward.models.completeness import check_complete, model_named

log = logging.getLogger(__name__)


def convert_once(file: Path) -> Path:
    """Return the cached transformers folder of a GGUF file, converting the file if needed."""
    import_extra("gguf", f"model = {str(file)!r} is a GGUF file, which")
    stat = file.stat()
    # Size and time instead of a checksum, which would read gigabytes at every start.
    identity = f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    key = f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return build_once(key, lambda folder: convert(file.resolve(), folder))


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a transformers folder: float32 weights and the tokenizer."""
    log.warning("converting %s to float32 safetensors", file.name)
    options: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    # gguf has no option to hide its progress bar.
    with model_named(str(file)), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            file.parent,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and an error
            **options,
        )
        model, report = loaded
        check_complete(str(file), report)
        # transformers does not save a model that it takes for quantised; a new one saves them.
        del model.config.quantization_config
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(model.config)
        plain.save_pretrained(folder, state_dict=model.state_dict())
        tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):  # otherwise only their owner could read them
        shutil.copymode(folder / "config.json", weights)
